"""Remember which normal layer a raw one has: an unchanged layer is then never read again.

Both are named by their content, so what was learnt once is true for ever and on every engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dih20.image.archive.normal_layer import FORMAT
from dih20.paths import cache_dir

MOST = 4000


def load() -> dict[str, str]:
    """Give raw diff id -> normal diff id, "" for a layer that holds nothing; damage is the same as none."""
    try:
        known = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {str(raw): str(normal) for raw, normal in known.items()}


def remember(learnt: Mapping[str, str]) -> None:
    """Add what was learnt, written whole or not at all."""
    known = {**load(), **learnt}
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(dict(list(known.items())[-MOST:]), indent=0))
    partial.replace(path)


def _path() -> Path:
    return cache_dir() / "archive" / f"normal-layers-{FORMAT}.json"
