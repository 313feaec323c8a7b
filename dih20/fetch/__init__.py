"""The only step that downloads: locked files by sha256 into a cache that is addressed by content.

cached(file)                        path of a verified file, or FetchError that names `./inv fetch`
fetch_files(ui, files, mirrors)     put files into the cache, through the mirrors in force
unpack_source(name, lock, into)     the unpacked tree of an upstream source
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dih20.fetch.cache import cached
    from dih20.fetch.downloads import fetch_files
    from dih20.fetch.sources import unpack_source

__all__ = ["cached", "fetch_files", "unpack_source"]

_WHERE = {"cached": "cache", "fetch_files": "downloads", "unpack_source": "sources"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that listing tasks does not load what downloads need."""
    import importlib

    if name in _WHERE:
        return getattr(importlib.import_module(f"dih20.fetch.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
