"""What holds for ever once it was learnt: name -> name, in a file that several builds add to."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

from dih20.image.archive.partial import PartialFile


def load(path: Path) -> dict[str, str]:
    """Give what is known so far; a damaged record is the same as none."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}


def add(path: Path, learnt: Mapping[str, str], *, most: int) -> None:
    """Add to what is known and keep the newest `most`; what another build adds meanwhile is kept as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # briefly; no file_guard: this goes to build hosts alone
        before = load(path)
        kept = dict(list({**before, **learnt}.items())[-most:])
        if kept != before:
            with PartialFile(path) as out:
                out.write(json.dumps(kept, indent=0).encode())
