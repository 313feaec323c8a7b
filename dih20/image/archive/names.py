"""Remember which layer stands behind a file name of a `docker save` stream.

Engine 20.10 names such a file by a hash over the layer's chain and its parents, so a name means the
same layer for ever. Knowing it lets a many-gigabyte base layer go by without being hashed or spooled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dih20.image.archive import learnt
from dih20.paths import cache_dir

MOST_NAMES = 2000


def load() -> dict[str, str]:
    """Give file name -> diff id as learnt so far."""
    return learnt.load(_path())


def remember(names: Mapping[str, str]) -> None:
    """Add what was learnt."""
    learnt.add(_path(), names, most=MOST_NAMES)


def forget() -> None:
    """Forget all of it: a name may have been learnt wrongly."""
    _path().unlink(missing_ok=True)


def _path() -> Path:
    return cache_dir() / "archive" / "layer-names.json"
