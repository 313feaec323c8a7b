"""Let one process at a time do a piece of work, and say what a second one waits for.

The guard is a locked file; the kernel frees it when its holder ends, however that ends. Who holds
it writes its process number in, for the one line that a waiting process prints.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dih20.paths import shown


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def only_holder(path: Path, say: Callable[[str], None] = _to_stderr) -> Iterator[None]:
    """Hold a guard, waiting for it as long as another process has it; `say` is told so once.

    Example:
        with only_holder(folder / f"{key}.guard", ui.line):
            ...
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            guard.seek(0)
            number = guard.read().strip()
            holder = f"process {number}" if number else "another process"
            say(f"  waiting for {shown(path)}, held by {holder} ...")
            fcntl.flock(guard, fcntl.LOCK_EX)
        _note(guard.fileno(), str(os.getpid()))
        try:
            yield
        finally:
            _note(guard.fileno(), "")


def _note(guard: int, text: str) -> None:
    os.ftruncate(guard, 0)
    os.write(guard, text.encode())
