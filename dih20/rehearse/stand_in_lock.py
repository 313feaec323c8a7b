"""The rehearsal's lock: the committed one, with the stand-in's Debian packages as they are today.

Debian's mirrors keep only the current version of a package, so that a pin of last month may be
gone. Everything else stays as committed; what moved is said, and the committed lock is not touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dih20.console import Console
from dih20.lock import Lock
from dih20.lock.files import LockedFile
from dih20.lock.writing import write_lock
from dih20.paths import REPOSITORY

_BASE = "stand-in"


def write_rehearsal_lock(ui: Console, path: Path) -> str:
    """Resolve the stand-in anew into a copy of the committed lock; give a line on what moved.

    The copy must be the lock in force (DI_LOCK), since that is what `inv lock` writes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(REPOSITORY / "di.lock.yaml", path)
    before = _packages(Lock.load(path))
    write_lock(ui, only="base,apt", base=_BASE, image_name="di-h20", only_plan=False, upgrade=True)
    moved = moved_packages(before, _packages(Lock.load(path)))
    if not moved:
        return "nothing moved since the committed lock"
    return f"{len(moved)} Debian packages moved since the committed lock: {', '.join(moved[:4])}"


def _packages(lock: Lock) -> list[LockedFile]:
    return [*lock.base_debs(_BASE), *lock.debs(_BASE)]


def moved_packages(before: list[LockedFile], now: list[LockedFile]) -> list[str]:
    """Give "name old -> new" for every package whose version changed, came or went."""
    old, new = ({file.name: file.version for file in files} for files in (before, now))
    return [
        f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
