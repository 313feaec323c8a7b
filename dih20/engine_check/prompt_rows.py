"""Judge the log-probs of a prompt's own tokens: what prefill says in every row, not in its last only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from dih20.engine_check.driver import Reply
from dih20.engine_check.reference import Followed

# nats; of the median over all tokens. Measured with the reference: see docs/engine-check.md.
MEDIAN_LIMIT = 0.06
FAR = (
    1.0  # nats; the share of tokens beyond it is recorded, not judged: near ties of routers make it
)
_WORST = 6
FLOOR = -9999.0  # upstream's word for -inf
# nats; upstream's sampler sums probabilities in fp32, the largest first, and leaves out what comes after 1.
# A sum over the canary's 768 tokens is off by 2e-5 at most, so tokens below e^-10 may be left out.
MAY_BE_LEFT_OUT_BELOW = -10.0


def of_prompts(
    cases: Sequence[Followed], replies: Sequence[Reply]
) -> tuple[dict[str, Any], list[str]]:
    """Give how far all prompts' log-probs are apart, and what is wrong with them.

    A mean would be decided by single tokens: where a router nearly ties, one bf16 step turns an
    expert and moves a log-prob by several nats. So the worst tokens carry the smallest margin of
    any layer's router in the row that says them.
    """
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for case, reply in zip(cases, replies, strict=True):
        got = reply.prompt_logprobs
        if len(got) != len(case.prompt_logprobs):
            wrong.append(
                f"{case.name}: log-probs of {len(got)} prompt tokens, "
                f"expected {len(case.prompt_logprobs)}"
            )
            continue
        rows += [
            {
                "case": case.name,
                "position": row + 1,
                "got": value,
                "expected": want,
                "router": margin,
            }
            for row, (value, want, margin) in enumerate(
                zip(got, case.prompt_logprobs, case.router_margins, strict=True)
            )
        ]
    floored = [row for row in rows if row["got"] <= FLOOR]
    if lost := [row for row in floored if row["expected"] >= MAY_BE_LEFT_OUT_BELOW]:
        wrong.append(
            f"{len(lost)} prompt tokens have no probability at all, the first in {lost[0]['case']}, "
            f"position {lost[0]['position']}; expected {lost[0]['expected']:.3f} nats"
        )
    rows = [row for row in rows if row["got"] > FLOOR or math.isnan(row["got"])]
    apart = [abs(row["got"] - row["expected"]) for row in rows]
    finite = [gap for gap in apart if math.isfinite(gap)]
    if len(finite) < len(apart):
        wrong.append(f"{len(apart) - len(finite)} log-probs of prompt tokens are not finite")
    median = round(statistics.median(finite), 6) if finite else None
    if median is not None and median > MEDIAN_LIMIT:
        wrong.append(
            f"log-probs of prompt tokens differ by {median} in the median; {MEDIAN_LIMIT} at most"
        )
    order = sorted(range(len(rows)), key=lambda row: _last_if_finite(apart[row]), reverse=True)
    numbers = {
        "tokens": len(rows),
        "without_probability": len(floored),
        "median_difference": median,
        "share_beyond_1_nat": round(sum(gap > FAR for gap in finite) / len(rows), 6)
        if rows
        else None,
        "worst": [_shown(rows[row]) for row in order[:_WORST]],
    }
    return numbers, wrong


def _last_if_finite(gap: float) -> float:
    return gap if math.isfinite(gap) else math.inf


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(v, 6) if isinstance(v, float) else v for name, v in row.items()}
