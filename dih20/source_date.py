"""The one date that everything made here carries.

The same inputs give the same bytes only when no clock is read, so images, wheels, provenance and
bills of materials all say this instant. It is a constant: a commit's date would change what is
built with every commit that touches none of its inputs, and an exported tree has no commit.
"""

from __future__ import annotations

import datetime

SOURCE_DATE_EPOCH = 1767225600  # 2026-01-01T00:00:00Z, in seconds


def source_date() -> datetime.datetime:
    """Give the date as an aware datetime."""
    return datetime.datetime.fromtimestamp(SOURCE_DATE_EPOCH, datetime.UTC)
