"""The content-addressed cache: DI_CACHE/files/sha256/ab/abcd.../FILENAME.

A file keeps its own name inside a folder named by its hash, because pip and dpkg read the name. It
gets there by a rename of a finished and verified download, so what is there is whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dih20.errors import FetchError, HashMismatch
from dih20.file_guard import only_holder
from dih20.lock.files import LockedFile
from dih20.paths import cache_dir, shown

_CHUNK = 1 << 20


def place(file: LockedFile) -> Path:
    """Give where a file belongs in the cache, whether it is there or not."""
    return cache_dir() / "files" / "sha256" / file.sha256[:2] / file.sha256 / file.filename


def is_cached(file: LockedFile) -> bool:
    """Say whether the verified file is there; one that is not what it should be is removed."""
    try:
        cached(file)
    except HashMismatch:
        place(file).unlink()
        return False
    except FetchError:
        return False
    return True


def cached(file: LockedFile) -> Path:
    """Give the path of a verified file; FetchError names `./inv fetch` when it is not there.

    A file is read and hashed once; after that its size and times vouch for it.
    """
    path = place(file)
    if not path.is_file():
        raise FetchError(
            found=f"{file.filename} ({file}) is not in the cache {shown(cache_dir())}",
            expected=f"the file with sha256 {file.sha256[:12]}..., as the lock says",
            remedy="run `./inv fetch`",
        )
    stamp = path.with_name(".verified")
    facts = _facts(path)
    if stamp.is_file() and stamp.read_text() == facts:
        return path
    verify(path, file)
    _write_stamp(path)
    return path


def verify(path: Path, file: LockedFile, advance: Callable[[float], None] | None = None) -> None:
    """Raise HashMismatch unless a file has the locked hash."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            if advance:
                advance(len(chunk))
    if digest.hexdigest() != file.sha256:
        raise HashMismatch(
            found=f"{shown(path)}: sha256 {digest.hexdigest()}, {path.stat().st_size} bytes",
            expected=f"sha256 {file.sha256}, {file.size_bytes} bytes, from the lock ({file})",
            remedy=f"remove {shown(path)}, then run `./inv fetch`",
        )


@contextmanager
def only_one(file: LockedFile) -> Iterator[Path]:
    """Hold a file's place while it is put there, and give where to put the partial download.

    Two fetches of one file at once: the second waits, then finds it done.
    """
    folder = place(file).parent
    with only_holder(folder / ".guard"):
        yield folder / f".{file.filename}.part"


def keep(partial: Path, file: LockedFile) -> Path:
    """Move a finished and verified download to its place."""
    target = place(file)
    partial.replace(target)
    target.chmod(0o644)
    _write_stamp(target)
    return target


def _write_stamp(path: Path) -> None:
    fresh = path.with_name(f".verified.{os.getpid()}")
    fresh.write_text(_facts(path))
    fresh.replace(path.with_name(".verified"))


def _facts(path: Path) -> str:
    status = path.stat()
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"
