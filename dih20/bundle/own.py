"""This repository's part of the bundle: what runs on the host, as it lies here.

It is read at once and kept, so that what is packed minutes later is what the manifest describes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dih20.bundle.entries import Entry, of_bytes, of_file, of_tree
from dih20.bundle.request import Request
from dih20.engine_check.sources import source_hashes
from dih20.errors import UsageError
from dih20.paths import REPOSITORY, lock_file

FOLDERS = ("bench", "configs", "dih20", "dropins", "h20_ops", "patches", "recipes", "v41")
GROUP = "own"
CANARY = f"{GROUP}/v41/canary/data/"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Our files as they were at one moment, with the commit and the hashes that engine-check reports."""

    entries: list[Entry]
    commit: str
    sources: dict[str, str]


def snapshot(request: Request, engine: Path) -> Snapshot:
    """Read everything; once more when a file changed meanwhile, and then it is an error.

    engine: the patched tree, whose hash stands among the sources.
    """
    for _ in range(3):
        before = commit(), source_hashes(engine)
        entries = [_read(entry) for entry in own_entries(request)]
        if before == (commit(), source_hashes(engine)):
            entries.append(of_bytes(f"{GROUP}/COMMIT", f"{before[0]}\n".encode()))
            return Snapshot(entries=entries, commit=before[0], sources=before[1])
    raise UsageError(
        found="files of this repository change while they are read",
        expected="a tree at rest: the manifest describes one state of it",
        remedy="run ./inv bundle again when nothing else writes here, or in a clone",
    )


def _read(entry: Entry) -> Entry:
    if entry.link:
        return entry
    with entry.open() as content:
        return replace(of_bytes(entry.name, content.read()), executable=entry.executable)


def own_entries(request: Request) -> Iterator[Entry]:
    """Give our packages, the patchset, the canary and the lock."""
    for folder in FOLDERS:
        for entry in of_tree(f"{GROUP}/{folder}", REPOSITORY / folder):
            if "canary" not in request.without or not entry.name.startswith(CANARY):
                yield entry
    yield of_file(f"{GROUP}/di.lock.yaml", lock_file())
    yield of_file(f"{GROUP}/LICENSE", REPOSITORY / "LICENSE")


def commit() -> str:
    """Give the commit; "-changed" after it when a file that goes in is not as committed."""
    paths = [*FOLDERS, "di.lock.yaml", "LICENSE"]
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", *paths)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-changed" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
