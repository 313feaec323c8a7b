"""A packed file that several deploys of this machine may send at once: made by one, removed by the last."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self


class PackedFile:
    """Hold a file while it is sent; after a failure it stays, and the next deploy sends it.

    Example:
        with PackedFile(path) as packed:
            packed.ensure(is_whole, make)
            send(path)
            packed.remove()
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._guard = self.path.with_name(f"{self.path.name}.lock").open("w")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._guard.close()

    def ensure(self, is_whole: Callable[[], bool], make: Callable[[], None]) -> bool:
        """Make the file unless it is there; say whether it was. From then on nobody removes it."""
        was_there = True
        while True:
            fcntl.flock(self._guard, fcntl.LOCK_SH)
            if is_whole():
                return was_there
            fcntl.flock(self._guard, fcntl.LOCK_EX)  # lets go of the shared one first: look again
            if not is_whole():
                make()
                was_there = False

    def remove(self) -> None:
        """Remove the file, unless another deploy is sending it: that one will."""
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        self.path.unlink(missing_ok=True)
