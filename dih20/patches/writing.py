"""Put changed files into a tree so that one that fails midway has changed none.

Every new file is first written whole beside its place, under a name of this process; only then
are files removed and the new ones renamed into their places. A rename gives the name another
file, so a hard link to somebody's file is never written through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_files(
    root: Path, *, removed: Iterable[str], files: Mapping[str, tuple[int, bytes]]
) -> None:
    """Remove files, then put (permissions, content) in place; folders left empty go too."""
    fresh: dict[Path, Path] = {}
    try:
        for number, (path, (permissions, content)) in enumerate(files.items()):
            target = root / path
            # In the nearest folder there is: what lies between comes when nothing can fail any more.
            folder = next(parent for parent in target.parents if parent.is_dir())
            aside = fresh[target] = folder / f".{target.name[:80]}.{os.getpid()}.{number}.part"
            aside.write_bytes(content)
            aside.chmod(permissions)
        for path in removed:
            _remove(root, root / path)
        for target, aside in fresh.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(target)
    finally:
        for aside in fresh.values():
            aside.unlink(missing_ok=True)


def _remove(root: Path, target: Path) -> None:
    if not target.is_file():
        return
    target.unlink()
    for parent in target.parents:
        if parent == root or any(parent.iterdir()):
            break
        parent.rmdir()
