"""Where one wheel is built: a folder of its identity, used by one build at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dih20.console import Console


@contextmanager
def alone(ui: Console, work: Path) -> Iterator[None]:
    """Hold a work folder while its wheel is built; a second build says that it waits, then gets its turn."""
    work.parent.mkdir(parents=True, exist_ok=True)
    with work.with_name(f"{work.name}.guard").open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ui.line(f"  waiting for another build of {work.name} ...", style="dim")
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield


@contextmanager
def fresh(work: Path) -> Iterator[Path]:
    """Give the folder, empty; it is kept when the build fails, for a look at what came out."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "job").mkdir(parents=True)
    yield work
    shutil.rmtree(work, ignore_errors=True)
