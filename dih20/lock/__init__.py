"""The lock: every pin in one file, written by `inv lock` only.

lock = Lock.load()                  di.lock.yaml, or the file that DI_LOCK names
lock.base("stand-in").digest        what the base is; Base.require_digest() raises Unresolved
lock.debs("stand-in")               LockedFile list; also header_wheels(), requirements("cp312"), ...
lock.identity                       sha256 over its canonical form
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dih20.lock.files import Base, LockedFile, LockedSource
    from dih20.lock.model import Lock

__all__ = ["Base", "Lock", "LockedFile", "LockedSource"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that listing tasks does not load the models."""
    if name == "Lock":
        from dih20.lock import model

        return model.Lock
    if name in __all__:
        from dih20.lock import files

        return getattr(files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
