"""Remember which layer stands behind a file name of a `docker save` stream.

Engine 20.10 names such a file by a hash over the layer's chain and its parents, so a name means the
same layer for ever. Knowing it lets a many-gigabyte base layer go by without being hashed or spooled.
"""

from __future__ import annotations

import json

from dih20.paths import cache_dir

MOST_NAMES = 2000


def load() -> dict[str, str]:
    """Give file name -> diff id as learnt so far; a damaged record is the same as none."""
    try:
        known = json.loads((cache_dir() / "archive" / "layer-names.json").read_text())
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}


def remember(names: dict[str, str]) -> None:
    """Keep the newest names, written whole or not at all."""
    target = cache_dir() / "archive" / "layer-names.json"
    kept = dict(list(names.items())[-MOST_NAMES:])
    if kept == load():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=0))
    partial.replace(target)


def forget() -> None:
    (cache_dir() / "archive" / "layer-names.json").unlink(missing_ok=True)
