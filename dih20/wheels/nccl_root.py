"""Find NCCL for a build: the one folder that has both library and header of the locked version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dih20.errors import NcclMismatch


@dataclass(frozen=True, kw_only=True)
class NcclRoot:
    """A complete NCCL: header and library of one folder."""

    path: str
    library: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """What was picked, and what was not with the reasons."""

    picked: NcclRoot
    rejected: tuple[tuple[str, str], ...]

    @property
    def lines(self) -> list[str]:
        first = f"NCCL {self.picked.version} at {self.picked.path} ({self.picked.library})"
        return [first, *(f"rejected {path}: {why}" for path, why in self.rejected)]


def pick_nccl(folders: Iterable[Mapping[str, Any]], *, version: str) -> Search:
    """Pick the first complete folder of the locked version; none is an error before any compile.

    Args:
        folders: what dih20.wheels.inside.look.nccl_folders gives.
    """
    picked: NcclRoot | None = None
    rejected: list[tuple[str, str]] = []
    for folder in folders:
        reason = _why_not(folder, version)
        if reason is None and picked is None:
            picked = NcclRoot(path=folder["path"], library=folder["libraries"][0], version=version)
        else:
            reason = reason or f"complete too, but {picked.path if picked else ''} comes first"
            rejected.append((folder["path"], reason))
    if picked is None:
        listed = (
            "; ".join(f"{path}: {why}" for path, why in rejected) or "no folder holds any of it"
        )
        raise NcclMismatch(
            found=f"no complete NCCL for the build: {listed}",
            expected=f"one folder with include/nccl.h and lib/libnccl.so* of {version} (di.lock.yaml)",
            remedy="build the image again (./inv build-image); its NCCL step puts both in place",
        )
    return Search(picked=picked, rejected=tuple(rejected))


def _why_not(folder: Mapping[str, Any], version: str) -> str | None:
    if not folder["libraries"]:
        return "a header, but no lib/libnccl.so*"
    if not folder["has_header"]:
        return f"lib/{folder['libraries'][0]}, but no include/nccl.h"
    if folder["version"] != version:
        return f"its header says {folder['version'] or 'no version'}, the lock says {version}"
    return None
