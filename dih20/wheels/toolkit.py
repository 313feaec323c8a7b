"""A CUDA toolkit for builds on a base without one, put together from the lock's wheels."""

from __future__ import annotations

import shutil
import stat
import zipfile
from pathlib import Path

from dih20.console import Console
from dih20.errors import WheelError
from dih20.fetch import cached
from dih20.file_guard import only_holder
from dih20.lock import Lock, LockedFile
from dih20.paths import cache_dir
from dih20.wheels.identity import digest_of

IN_CONTAINER = "/usr/local/cuda"
OLDEST = (12, 9)


def assemble(ui: Console, lock: Lock) -> Path:
    """Give a folder with bin/nvcc, include and lib64, made once per set of wheels."""
    wheels = lock.toolkit_wheels()
    folder = cache_dir() / "toolkit"
    target = folder / digest_of([wheel.sha256 for wheel in wheels])[:16]
    with only_holder(folder / f"{target.name}.guard", ui.line):
        if not (target / "bin" / "nvcc").is_file():
            with ui.step("unpack", f"CUDA toolkit {version_of(wheels)} from {len(wheels)} wheels"):
                _unpack([cached(wheel) for wheel in wheels], target)
    return target


def version_of(wheels: list[LockedFile]) -> str:
    """Give the version of the nvcc wheel."""
    return next(wheel.version for wheel in wheels if wheel.name == "nvidia-cuda-nvcc")


def _unpack(wheels: list[Path], target: Path) -> None:
    draft = target.with_name(f".{target.name}")
    shutil.rmtree(draft, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(draft)
    (root,) = list((draft / "nvidia").glob("cu1[0-9]")) or [draft]
    if not (root / "bin" / "nvcc").is_file():
        raise WheelError(
            found=f"no bin/nvcc in {', '.join(wheel.name for wheel in wheels)}",
            expected="the wheels of one CUDA toolkit, under nvidia/cu13",
            remedy="see `toolkit:` in configs/images, then run ./inv lock",
        )
    for program in [*(root / "bin").rglob("*"), *(root / "nvvm" / "bin").glob("*")]:
        if program.is_file():
            program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    _link_libraries(root)
    root.rename(target)
    shutil.rmtree(draft, ignore_errors=True)


def _link_libraries(root: Path) -> None:
    """Wheels hold no links: give lib64, and libNAME.so beside each libNAME.so.N, as a toolkit has them."""
    for library in sorted((root / "lib").glob("lib*.so.*")):
        link = library.with_name(library.name.split(".so.")[0] + ".so")
        if not link.exists():
            link.symlink_to(library.name)
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")


def refuse_old(release: str, where: str) -> None:
    """Raise for an nvcc that is too old for the vendors, before any compiler starts.

    Args:
        release: as "13.0.88" or "13.0 V13.0.88".
    """
    numbers = tuple(int(part) for part in release.split()[0].split(".")[:2])
    if numbers < OLDEST:
        raise WheelError(
            found=f"nvcc {release} in {where}",
            expected="nvcc >= 12.9, which DeepGEMM's and DeepEP's run-time compilers ask for",
            remedy="lock a newer toolkit or base (configs/images, then ./inv lock)",
        )
