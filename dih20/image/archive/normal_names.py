"""Remember which normal layer a raw one has: an unchanged layer is then never read again.

Both are named by their content, so what was learnt once is true for ever and on every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dih20.image.archive import learnt
from dih20.image.archive.normal_layer import FORMAT
from dih20.paths import cache_dir

MOST = 4000


def load() -> dict[str, str]:
    """Give raw diff id -> normal diff id, "" for a layer that holds nothing."""
    return learnt.load(_path())


def remember(normal: Mapping[str, str]) -> None:
    """Add what was learnt."""
    learnt.add(_path(), normal, most=MOST)


def _path() -> Path:
    return cache_dir() / "archive" / f"normal-layers-{FORMAT}.json"
