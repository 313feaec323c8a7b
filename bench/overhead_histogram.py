"""The server's own histogram of its overhead per token, read from /metrics."""

from __future__ import annotations

import math
import re
from typing import Any

HISTOGRAM = "dih20_serve_gateway_overhead_seconds"


def histogram(metrics: str) -> dict[float, float]:
    """Give the server's overhead histogram: bounds in milliseconds, cumulative counts."""
    rows = re.findall(rf'^{HISTOGRAM}_bucket{{le="(.+?)"}} (\S+)$', metrics, re.M)
    return {float(bound) * 1000: float(count) for bound, count in rows}


def quantiles_of(before: dict[float, float], after: dict[float, float]) -> dict[str, Any]:
    """Give quantiles of what was added, in milliseconds, linear within a bucket."""
    added = [(bound, count - before[bound]) for bound, count in after.items()]
    total = added[-1][1]
    found: dict[str, Any] = {"tokens": int(total)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        at = next(i for i, (_, count) in enumerate(added) if count >= share * total)
        low, below = added[at - 1] if at else (0.0, 0.0)
        bound, count = added[at]
        if bound == math.inf:
            found[name] = f"above {low:g}"
        else:
            found[name] = round(low + (bound - low) * (share * total - below) / (count - below), 3)
    return found
