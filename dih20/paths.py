"""Where things live: the repository, the download cache, build output."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def cache_dir() -> Path:
    """Give the cache for downloads and engine state: DI_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("DI_CACHE"):
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dih20"


def build_dir() -> Path:
    """Give the folder for build output and logs: DI_BUILD, else build/ in the repository."""
    chosen = os.environ.get("DI_BUILD")
    return Path(chosen).expanduser().resolve() if chosen else REPOSITORY / "build"


def lock_file() -> Path:
    """Give the lock in force: DI_LOCK (a rehearsal has its own), else di.lock.yaml."""
    chosen = os.environ.get("DI_LOCK")
    return Path(chosen).expanduser().resolve() if chosen else REPOSITORY / "di.lock.yaml"


def wheel_store() -> Path:
    """Give the content-addressed wheel store: DI_WHEELS, else wheels/ in the repository."""
    chosen = os.environ.get("DI_WHEELS")
    return Path(chosen).expanduser().resolve() if chosen else REPOSITORY / "wheels"


def configs_dir() -> Path:
    """Give the folder of configuration files: DI_CONFIGS, else configs/ in the repository."""
    chosen = os.environ.get("DI_CONFIGS")
    return Path(chosen).expanduser().resolve() if chosen else REPOSITORY / "configs"


def shown(path: Path) -> str:
    """Give a path the way messages show it: relative to the repository where it lies inside."""
    try:
        return str(path.relative_to(REPOSITORY))
    except ValueError:
        return str(path)
