"""Folders that a host's run writes for another host, and the hash of a file in one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dih20.errors import UsageError


def make_empty(folder: Path) -> None:
    """Make a folder to write into; one that holds something already is refused untouched."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(
            found=f"{folder} is not empty",
            expected="an empty folder or none",
            remedy="name another folder; nothing was written",
        )
    folder.mkdir(parents=True, exist_ok=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
