"""This repository's part of the bundle: what runs on the host, as it lies here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from dih20.bundle.entries import Entry, of_bytes, of_file, of_tree
from dih20.bundle.request import Request
from dih20.paths import REPOSITORY, lock_file

FOLDERS = ("bench", "configs", "dih20", "dropins", "h20_ops", "patches", "recipes", "v41")
GROUP = "own"
CANARY = f"{GROUP}/v41/canary/data/"


def own_entries(request: Request) -> Iterator[Entry]:
    """Give our packages, the patchset, the canary, the lock and the name of the commit."""
    for folder in FOLDERS:
        for entry in of_tree(f"{GROUP}/{folder}", REPOSITORY / folder):
            if "canary" not in request.without or not entry.name.startswith(CANARY):
                yield entry
    yield of_file(f"{GROUP}/di.lock.yaml", lock_file())
    yield of_file(f"{GROUP}/LICENSE", REPOSITORY / "LICENSE")
    yield of_bytes(f"{GROUP}/COMMIT", f"{commit()}\n".encode())


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
