"""The command that takes the Debian packages which mirrors serve now."""

from __future__ import annotations

from dih20.lock.files import OWN


def newer_debs(base: str) -> str:
    """Give it for a base: its packages, those put on it, and the CI image's, which share its versions."""
    if base == OWN:
        return "./inv lock --upgrade --only ci"
    return f"./inv lock --upgrade --only base,apt,ci --base {base}"
