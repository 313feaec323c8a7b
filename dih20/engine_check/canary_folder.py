"""The canary with the vision shard that the engine's loader demands."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from dih20.engine_check.options import Options
from dih20.errors import UsageError


def ensure_checkpoint(options: Options) -> Path:
    """Give the folder that was named, or one in the work folder, made now if it is not there."""
    if options.checkpoint:
        return _named(Path(options.checkpoint))
    from v41.canary import FOLDER
    from v41.canary.vision_shard import write_with_vision

    folder = options.folder / "canary"
    if not (folder / "config.json").is_file():
        part = options.folder / f"canary.part-{time.time_ns()}"
        write_with_vision(FOLDER, part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return folder


def _named(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise UsageError(
            found=f"--checkpoint {folder}, which holds no config.json",
            expected="the canary with its vision shard (v41.canary.vision_shard.write_with_vision)",
            remedy="correct --checkpoint, or leave it out: the check makes the folder",
        )
    return folder
