"""Give folders in the order of their names to every python of a build; installed as sitecustomize.

A file system lists a folder in an order of its own (ext4: by a hash that is seeded when the file system
is made). What a build reads in that order, it writes in that order, so that two machines make two wheels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

_scandir, _listdir = os.scandir, os.listdir


class _Sorted:
    """What os.scandir gives: an iterator and a context manager, over entries that are read already."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Sorted:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _by_name(entry: Any) -> Any:
    return entry.name


def scandir(path: Any = ".") -> _Sorted:
    """Give what os.scandir gives, sorted."""
    with _scandir(path) as entries:
        return _Sorted(sorted(entries, key=_by_name))


def listdir(path: Any = ".") -> list[Any]:
    """Give what os.listdir gives, sorted."""
    return sorted(_listdir(path))


os.scandir, os.listdir = scandir, listdir  # type: ignore[assignment]
