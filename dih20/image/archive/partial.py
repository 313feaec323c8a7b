"""A file that gets its name only when it is whole; what breaks off leaves nothing behind."""

from __future__ import annotations

import fcntl
import glob
import secrets
from pathlib import Path
from types import TracebackType
from typing import BinaryIO


class PartialFile:
    """Write a file beside its place, and move it there at the end.

    Several processes may write one file at once: each has a partial file of its own and holds its
    lock, so that one without a lock is known to be left by a process that was killed.

    Example:
        with PartialFile(path) as out:
            out.write(data)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for left in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.partial"):
            _remove_unless_held(left)
        while True:
            self._partial = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.partial")
            self._file = self._partial.open("xb")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._partial.exists():
                return self._file
            self._file.close()  # another process took it for one that was left, before it was held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._file.flush()
                self._partial.replace(self.path)
        finally:
            self._partial.unlink(missing_ok=True)
            self._file.close()


def _remove_unless_held(partial: Path) -> None:
    try:
        with partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError):
        return
