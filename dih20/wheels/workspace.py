"""Where one wheel is built: a folder of its identity, which its build holds the guard of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fresh(work: Path) -> Iterator[Path]:
    """Give the folder, empty; it is kept when the build fails, for a look at what came out."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "job").mkdir(parents=True)
    yield work
    shutil.rmtree(work, ignore_errors=True)
