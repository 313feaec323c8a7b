"""Compiled kernels, taken from one host to another that would compile the very same ones."""

from __future__ import annotations

import filecmp
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dih20.bundle.onhost.environment import CACHES
from dih20.bundle.onhost.facts import HostFacts
from dih20.bundle.onhost.folders import make_empty, sha256_of
from dih20.errors import HashMismatch, HostError, UsageError

KEY, ARCHIVE = "key.json", "caches.tar.xz"
COMPILERS = ("tilelang", "apache-tvm-ffi", "tile-kernels", "nvidia-nccl-cu13")
_ASK = """
import json, sys
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in sys.argv[1:]}))
"""


def key_of(
    manifest: Mapping[str, Any], facts: HostFacts, environment: Mapping[str, str]
) -> dict[str, str]:
    """Give everything that compiled kernels depend on beside their own source.

    Versions are those that are found in the environment, whether the bundle or the host brought them.
    """
    vendors = {name: manifest["patched"][name]["identity"] for name in ("deep_gemm", "deep_ep")}
    return {
        "python": ".".join(facts.python.split(".")[:2]),
        "torch": facts.torch,
        "nvcc": facts.nvcc,
        "gcc": facts.gcc,
        "glibc": facts.glibc,
        **vendors,
        **_versions(environment),
    }


def _versions(environment: Mapping[str, str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK, *COMPILERS],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise HostError(
            found=f"no versions of {', '.join(COMPILERS)}: {last}",
            expected="packages of the bundle, or the host's own on PYTHONPATH",
            remedy="install the bundle again: sh run.sh --into FOLDER --no-check",
        )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def places(environment: Mapping[str, str]) -> dict[str, Path]:
    """Give the folders of the caches that are in force, by their names in an export."""
    return {name: Path(environment[variable]) for variable, name in CACHES.items()}


def counted(folders: Mapping[str, Path]) -> str:
    """Say how many compiled kernels there are, for whom, and where none is."""
    numbers = {name: sum(1 for _ in place.rglob("*.cubin")) for name, place in folders.items()}
    found = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
    if not found:
        shown = ", ".join(sorted({str(place) for place in folders.values()}))
        return f"none in {shown}: the first run compiles every kernel, which takes minutes"
    return found


def export(folders: Mapping[str, Path], into: Path, key: Mapping[str, str]) -> dict[str, Any]:
    """Write the caches and their key into a folder that has none yet."""
    files = {
        f"{name}/{path.relative_to(place).as_posix()}": path
        for name, place in folders.items()
        for path in _files(place)
        if _is_finished(path.relative_to(place), path)
    }
    if not files:
        raise HostError(
            found=f"no compiled kernel in {', '.join(map(str, folders.values()))}",
            expected="caches that a run of the engine has filled",
            remedy="run engine-check first",
        )
    make_empty(into)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=into.parent) as scratch:
        archive = Path(scratch, ARCHIVE)
        with lzma.open(archive, "wb", preset=6) as packed, tarfile.open(fileobj=packed, mode="w|") as out:  # fmt: skip
            for name, path in sorted(files.items()):
                member = tarfile.TarInfo(name)
                member.size = path.stat().st_size
                member.mode = 0o755 if path.suffix == ".so" else 0o644
                with path.open("rb") as content:
                    out.addfile(member, content)
        facts = {"key": dict(key), "files": len(files), "sha256": sha256_of(archive)}
        Path(scratch, KEY).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
        for name in (ARCHIVE, KEY):
            Path(scratch, name).replace(into / name)
    return {"files": len(files), "size_bytes": (into / ARCHIVE).stat().st_size}


def take(folders: Mapping[str, Path], source: Path, key: Mapping[str, str]) -> dict[str, int]:
    """Add a folder's caches to those here; what is here already stays as it is."""
    facts = _read(source)
    other = facts["key"]
    differing = [
        f"{name}: {other.get(name, 'not recorded')} there, {key.get(name, 'not recorded')} here"
        for name in sorted(other.keys() | key.keys())
        if other.get(name) != key.get(name)
    ]
    if differing:
        raise HostError(
            found="\n  ".join([f"caches of {source} were made by other versions:", *differing]),
            expected="the same versions: other ones compile other code under the same names",
            remedy="let this host compile its own; nothing was imported",
        )
    counts = {"added": 0, "same": 0, "kept": 0}
    with tempfile.TemporaryDirectory(prefix="di-caches-") as scratch:
        with lzma.open(source / ARCHIVE) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                archive.extractall(scratch, filter="data")
        for path in _files(Path(scratch)):
            name, *inside = path.relative_to(scratch).parts
            if name not in folders:
                continue
            target = folders[name].joinpath(*inside)
            if target.exists():
                counts["same" if filecmp.cmp(path, target, shallow=False) else "kept"] += 1
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
            counts["added"] += 1
    return counts


def _read(source: Path) -> dict[str, Any]:
    missing = [name for name in (KEY, ARCHIVE) if not (source / name).is_file()]
    if missing:
        raise UsageError(
            found=f"no {' and no '.join(missing)} in {source}",
            expected="a folder that `run.sh cache export` wrote",
            remedy="name that folder",
        )
    try:
        facts: dict[str, Any] = json.loads((source / KEY).read_text())
        wanted = str(facts["sha256"])
        assert isinstance(facts["key"], dict)
    except (ValueError, KeyError, TypeError, AssertionError) as fault:
        raise HashMismatch(
            found=f"{source / KEY} cannot be read: {fault!r}",
            expected="the key that `run.sh cache export` wrote",
            remedy="export again; nothing was imported",
        ) from fault
    found = sha256_of(source / ARCHIVE)
    if found != wanted:
        raise HashMismatch(
            found=f"{source / ARCHIVE} is damaged: sha256 {found[:12]}...",
            expected=f"{wanted[:12]}..., as {KEY} says",
            remedy="copy it again; nothing was imported",
        )
    return facts


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _is_finished(inside: Path, path: Path) -> bool:
    """Leave out what a compiler had not finished: locks, temporary and empty files."""
    hidden = any(part.startswith((".", "tmp")) for part in inside.parts)
    return not hidden and path.suffix not in {".lock", ".tmp", ".part"} and path.stat().st_size > 0
