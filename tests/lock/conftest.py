"""Local indexes and an empty cache for every test here."""

from __future__ import annotations

from tests.index.fixtures import cache, start_index

__all__ = ["cache", "start_index"]
