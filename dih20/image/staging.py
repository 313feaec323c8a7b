"""Lay out a step's inputs as one folder that the engine can mount."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePath

from dih20.image.inputs import Input
from dih20.paths import cache_dir

# Gives, while the step runs, the path of a folder with its inputs as the engine's machine sees it.
Stage = Callable[[tuple[Input, ...]], AbstractContextManager[PurePath]]


@contextmanager
def local_folder(files: tuple[Input, ...], *, below: str = "") -> Iterator[Path]:
    """Give a folder of links to the cache; on the cache's own file system, so that nothing is copied."""
    parent = cache_dir() / "staging" / below
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="step-", dir=parent))
    folder.chmod(0o755)
    try:
        write_inputs(files, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_inputs(files: tuple[Input, ...], folder: Path) -> None:
    """Write every input at its name below `folder`: linked where that works, else copied."""
    for entry in files:
        target = folder / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.text is not None:
            target.write_text(entry.text)
            continue
        source = entry.source()
        assert source is not None, f"{entry.name} has no source"
        if entry.locked is None:
            shutil.copyfile(
                source, target
            )  # a script may be edited while it runs; a link would change
            continue
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
