"""Why a component is further than three times from what the card allows."""

from __future__ import annotations

_SMALL = (
    "a few rows: several dependent kernels, or too few blocks to fill the card; the time is latency"
)
REASONS: dict[str, str] = {}


def reason(operator: str, rows: int) -> str:
    """Give the line for an operator; '' when none was written."""
    return REASONS.get(operator, _SMALL if rows <= 64 else "")
