"""The locked tools and files that builds and inspections use: cuobjdump, libnccl, requirement wheels."""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

from dih20.errors import LockError
from dih20.fetch import cached
from dih20.file_guard import only_holder
from dih20.lock import Lock, LockedFile
from dih20.paths import cache_dir


def cuobjdump(lock: Lock) -> Path:
    """Give the lock's cuobjdump, unpacked once."""
    program = _unpacked(lock.inspector_wheels()[0], "nvidia/cu13/bin/cuobjdump")
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return program


def nccl_library(lock: Lock) -> Path:
    """Give the locked libnccl.so.2, unpacked once: what it exports is what a wheel may use."""
    return _unpacked(lock.nccl(), "nvidia/nccl/lib/libnccl.so.2")


def _unpacked(wheel: LockedFile, member: str) -> Path:
    folder = cache_dir() / "tools" / wheel.sha256[:16]
    target = folder / Path(member).name
    with only_holder(folder / "guard"):
        if not target.is_file():
            draft = folder / f".{target.name}"
            with zipfile.ZipFile(cached(wheel)) as archive, archive.open(member) as source:
                with draft.open("wb") as file:
                    shutil.copyfileobj(source, file)
            draft.replace(target)
    return target


def stage_requirements(lock: Lock, python_tag: str, names: Iterable[str], into: Path) -> None:
    """Put the wheels of the build requirements into one folder, under their own names."""
    known = {file.name: file for file in lock.build_requirements(python_tag)}
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise LockError(
            found=f"build requirement(s) {', '.join(unknown)} not in the lock for {python_tag}",
            expected=f"one of {', '.join(known)}",
            remedy="add them under wheels.build in configs/images, then run ./inv lock",
        )
    into.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(cached(known[name]), into / known[name].filename)
