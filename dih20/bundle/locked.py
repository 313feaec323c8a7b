"""Locked files of the bundle: the engine's packages, build tools, headers."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from dih20.bundle.entries import Entry, of_bytes, of_wheel
from dih20.bundle.request import GROUPS, Request
from dih20.errors import FetchError, UsageError
from dih20.fetch import cached
from dih20.lock import Lock, LockedFile

BASE = "vllm"  # the base whose python a bare host has: its wheels are the ones to take
HEADER_DEBS = ("libdw-dev", "libelf-dev", "libzstd-dev")
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_x86_64")
_HEADER = re.compile(r"(?:^|/)include/(.+)$")


def target_python(lock: Lock) -> str:
    return lock.base(BASE).python_tag


def packages(lock: Lock, request: Request) -> list[LockedFile]:
    """Give the engine's run-time packages; a name in --without that there is not is refused."""
    files = lock.requirements(target_python(lock))
    names = {file.name for file in files}
    if unknown := sorted(set(request.without) - names - set(GROUPS)):
        raise UsageError(
            found=f"--without {', '.join(unknown)}",
            expected=f"packages of the engine ({', '.join(sorted(names))}) or of: {', '.join(GROUPS)}",
            remedy="correct --without",
        )
    return [f for f in files if not {f.name, "site"} & set(request.without)]


def glibc_for(files: list[LockedFile]) -> str:
    """Give the oldest C library that every wheel can be used with, by their names; 2.17 for pure ones."""
    newest = 17
    for file in files:
        minors = [int(minor) for minor in _MANYLINUX.findall(file.filename)]
        newest = max(newest, min(minors, default=0))
    return f"2.{newest}"


def build_tools(lock: Lock, request: Request) -> list[LockedFile]:
    return [] if "build" in request.without else lock.build_requirements(target_python(lock))


def header_wheels(lock: Lock, request: Request) -> list[LockedFile]:
    return [] if "headers" in request.without else lock.header_wheels()


def header_debs(lock: Lock, request: Request) -> list[LockedFile]:
    """Give the packages of C headers; they are read for their headers alone, whatever the suite."""
    if "headers" in request.without:
        return []
    found = [file for file in lock.debs("stand-in") if file.name in HEADER_DEBS]
    if len(found) != len(HEADER_DEBS):
        raise FetchError(
            found=f"the lock has {', '.join(file.name for file in found) or 'none'} of {', '.join(HEADER_DEBS)}",
            expected="all of them, under apt of base stand-in",
            remedy="put them back into apt: in configs/images, then run ./inv lock --only apt",
        )
    return found


def site_entries(files: list[LockedFile], group: str) -> Iterator[Entry]:
    """Give packages as they lie once installed."""
    for file in files:
        yield from of_wheel(group, cached(file))


def header_entries(wheels: list[LockedFile], debs: list[LockedFile]) -> Iterator[Entry]:
    """Give headers/include/...: what compilers find there by CPATH."""
    for wheel in wheels:
        for entry in of_wheel(
            "headers", cached(wheel), keep=lambda name: bool(_HEADER.search(name))
        ):
            found = _HEADER.search(entry.name)
            assert found is not None
            yield Entry(name=f"headers/include/{found[1]}", size=entry.size, open=entry.open)
    for deb in debs:
        yield from _deb_headers(cached(deb))


def _deb_headers(deb: Path) -> Iterator[Entry]:
    done = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(deb)], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise FetchError(
            found=f"dpkg-deb cannot read {deb.name}: {done.stderr.decode(errors='replace').strip()}",
            expected="a Debian package",
            remedy="run ./inv fetch --only apt --base stand-in",
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as content:
        for member in content:
            _, mark, inside = member.name.partition("usr/include/")
            if mark and member.isfile():
                file = content.extractfile(member)
                assert file is not None
                name = re.sub(r"^[a-z0-9_]+-linux-gnu/", "", inside)
                yield of_bytes(f"headers/include/{name}", file.read())
