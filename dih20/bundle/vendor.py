"""The vendors' packages: patched source trees, how to build them, and wheels that are built already."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from dih20.bundle.entries import Entry, of_tree, of_wheel
from dih20.bundle.locked import target_python
from dih20.bundle.request import WHEEL_LIST, Request
from dih20.console import Console
from dih20.errors import WheelError
from dih20.lock import Lock
from dih20.patches.prepare import PatchedTree, prepare_tree
from dih20.paths import shown
from dih20.wheels import elf
from dih20.wheels.recipes import Recipe, load_all
from dih20.wheels.sources import describe
from dih20.wheels.store import Store

NAMES = ("deep_gemm", "deep_ep", "deepinfer")


def recipes() -> list[Recipe]:
    by_name = {recipe.name: recipe for recipe in load_all()}
    return [by_name[name] for name in NAMES]


def trees(ui: Console, lock: Lock) -> dict[str, PatchedTree]:
    """Give each vendor's tree with the patchset in it."""
    return {name: prepare_tree(ui, lock, source=name) for name in NAMES}


def source_entries(found: dict[str, PatchedTree]) -> Iterator[Entry]:
    for name, tree in found.items():
        yield from of_tree(f"sources/{name}", tree.path)


def builds() -> list[dict[str, Any]]:
    """Give how each wheel is built, out of its recipe; {nccl} is filled in on the host."""
    return [
        {
            "name": recipe.name,
            "distribution": recipe.distribution,
            "environment": dict(recipe.build.environment),
            "memory_per_job_gb": recipe.build.memory_per_job_gb,
            "timeout_minutes": recipe.build.timeout_minutes,
        }
        for recipe in recipes()
    ]


def wheels(lock: Lock, request: Request) -> list[dict[str, Any]]:
    """Give the wheels to take along: the store's that belong to this lock, then those of --wheels."""
    found = [*_stored(lock), *(_given(lock, request) if request.wheels else [])]
    names = [(entry["name"], entry["torch"]) for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise WheelError(
                found=f"two wheels of {name[0]} for torch {name[1]}",
                expected="one",
                remedy="take one of them out of the wheel store or of --wheels",
            )
    return sorted(found, key=lambda entry: (entry["name"], entry["torch"]))


def wheel_entries(found: list[dict[str, Any]]) -> Iterator[Entry]:
    """Give wheels unpacked: what two of them share, such as CUTLASS, is then packed once."""
    for entry in found:
        yield from of_wheel(entry["folder"], Path(entry["path"]))


def _stored(lock: Lock) -> Iterator[dict[str, Any]]:
    tag = target_python(lock)
    for wheel in Store().wheels():
        if wheel.name not in NAMES or wheel.parts["python_tag"] != tag:
            continue
        recipe = next(recipe for recipe in recipes() if recipe.name == wheel.name)
        assert recipe.source is not None
        now = describe(lock, recipe.source)
        if (wheel.parts["source"], wheel.parts["patchset"]) == (now.source, now.patchset):
            yield _row(wheel.name, wheel.path, wheel.parts["torch"], "store")


def _given(lock: Lock, request: Request) -> Iterator[dict[str, Any]]:
    """Give the vendor wheels of a folder; the patched Python of the tree is used in any case."""
    assert request.wheels is not None
    known = {canonicalize_name(recipe.distribution): recipe.name for recipe in recipes()}
    rows = []
    for path in sorted(request.wheels.glob("*.whl")):
        distribution, version, _, tags = parse_wheel_filename(path.name)
        name = known.get(distribution)
        if name is None:
            continue
        wanted = Version(lock.source(name).version).base_version
        fits = {tag.interpreter for tag in tags} <= {target_python(lock), "py3"}
        if version.base_version != wanted or not fits:
            raise WheelError(
                found=f"{path.name} in {shown(request.wheels)}",
                expected=f"{name} {wanted} for {target_python(lock)}, as the lock says",
                remedy="build it from the locked source, or take it out of the folder",
            )
        torch = request.wheels_torch or _torch_in_list(request.wheels, path.name)
        rows.append(_row(name, path, torch, "given"))
    if not rows:
        raise WheelError(
            found=f"no vendor wheel in {shown(request.wheels)}",
            expected=f"wheels of {', '.join(known)}",
            remedy="correct --wheels",
        )
    yield from rows


def _torch_in_list(folder: Path, file: str) -> str:
    """Give the torch that a wheel was built with, as the host that built it wrote it down."""
    try:
        rows = {row["file"]: row for row in json.loads((folder / WHEEL_LIST).read_text())}
        return str(rows[file]["torch"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise WheelError(
            found=f"{shown(folder / WHEEL_LIST)} does not say which torch {file} was built with",
            expected="a folder that `run.sh wheels export` wrote",
            remedy="export again, or give --wheels-torch",
        ) from fault


def _row(name: str, path: Path, torch: str, origin: str) -> dict[str, Any]:
    return {
        "name": name,
        "file": path.name,
        "folder": f"vendor/{name}-torch{'.'.join(torch.split('.')[:2])}",
        "path": str(path),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "torch": torch,
        "glibc": _glibc_of(path),
        "origin": origin,
    }


def _glibc_of(wheel: Path) -> str:
    """Give the newest C library version that a wheel's machine code asks for."""
    newest = "2.17"
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        for name in archive.namelist():
            if name.endswith(".so"):
                found = elf.read(Path(archive.extract(name, scratch))).newest_version("GLIBC")
                newest = max(newest, found or newest, key=elf.numbered)
    return newest
