"""The rehearsal's lock: the committed one, with the stand-in's Debian packages as they are today.

Debian's mirrors keep only the current version of a package, so that a pin of last month may be
gone. Everything else stays as committed; what moved is said, and the committed lock is not touched.
"""

from __future__ import annotations

from pathlib import Path

from dih20.config import load_image, load_mirrors
from dih20.console import Console
from dih20.lock import Lock
from dih20.lock.base_pins import AptRoots, apt_closure, stand_in_base
from dih20.lock.canonical import write
from dih20.lock.files import UNRESOLVED, LockedFile
from dih20.paths import REPOSITORY

_BASE = "stand-in"


def write_rehearsal_lock(ui: Console, path: Path) -> str:
    """Write the lock of this rehearsal; give a line that says what moved."""
    committed = Lock.load(REPOSITORY / "di.lock.yaml")
    image, mirrors = load_image("di-h20"), load_mirrors()
    with AptRoots(mirrors) as roots:
        with ui.step("resolve", f"base {_BASE}") as step:
            base = stand_in_base(_BASE, image.bases.stand_in, roots)
            step.note = f"{len(base.packages)} packages"
        with ui.step("resolve", f"apt packages on {_BASE}") as step:
            packages = apt_closure(base, image, roots)
            step.note = f"{len(packages)} packages"
    lock = committed.model_copy(
        update={
            "bases": {**committed.bases, _BASE: base},
            "apt": {**committed.apt, _BASE: packages},
        }
    )
    write(lock, path)
    known = committed.apt.get(_BASE, UNRESOLVED)
    before = [*committed.base(_BASE).packages, *(known if known != UNRESOLVED else ())]
    moved = moved_packages(before, [*base.packages, *packages])
    if not moved:
        return "nothing moved since the committed lock"
    return f"{len(moved)} Debian packages moved since the committed lock: {', '.join(moved[:4])}"


def moved_packages(before: list[LockedFile], now: list[LockedFile]) -> list[str]:
    """Give "name old -> new" for every package whose version changed, came or went."""
    old, new = ({file.name: file.version for file in files} for files in (before, now))
    return [
        f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
