"""Compare what an engine said with what the reference says of the same tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dih20.engine_check.driver import Ask, Reply
from dih20.engine_check.reference import Followed

MEAN_LIMIT = 0.02  # nats; of the numbers
LIKELY = (
    -2.0
)  # nats; the log-prob of a token that the reference finds less likely carries more noise
UNLIKELY_LIMIT = 0.2  # nats; 0.02 to 0.04 in a sound engine
TIE = 0.25  # a lead of the likeliest token, in nats, below which another choice is a tie


def forced(case: Followed, *, prompt_logprobs: bool = False) -> Ask:
    """Ask for a case's golden tokens, at temperature 1, with the likeliest token of each step."""
    return Ask(
        prompt=case.prompt,
        max_tokens=len(case.golden),
        golden=case.golden,
        prompt_logprobs=prompt_logprobs,
        top=1,
    )


def compare(
    cases: Sequence[Followed], replies: Sequence[Reply]
) -> tuple[dict[str, Any], list[str]]:
    """Give numbers over all cases, and what is wrong with them."""
    wrong: list[str] = []
    gaps: list[float] = []
    others: list[float] = []
    choices: list[dict[str, Any]] = []
    ties = 0
    for case, reply in zip(cases, replies, strict=True):
        if fault := _fault(case, reply):
            wrong.append(fault)
            continue
        for got, want in zip(reply.logprobs, case.logprobs, strict=True):
            (gaps if not want < LIKELY else others).append(got - want)
        for step, (got, want) in enumerate(zip(reply.best, case.best, strict=True)):
            if got != want and case.margin[step] < TIE:
                ties += 1
            elif got != want:
                choices.append({"case": case.name, "step": step, "got": got, "expected": want})
    numbers: dict[str, Any] = {
        "cases": len(cases),
        "tokens": len(gaps),
        "mean_difference": _rounded([abs(gap) for gap in gaps]),
        "unlikely_tokens": len(others),
        "mean_difference_of_unlikely": _rounded([abs(gap) for gap in others]),
        "bias": _rounded(gaps),
        "largest_difference": max((abs(gap) for gap in gaps), default=None),
        "other_choices": choices[:10],
        "ties": ties,
    }
    for some, limit in ((gaps, MEAN_LIMIT), (others, UNLIKELY_LIMIT)):
        mean = _rounded([abs(gap) for gap in some])
        if mean is not None and not mean <= limit:  # NaN is none of the numbers within the limit
            kind = "" if some is gaps else " of unlikely tokens"
            wrong.append(f"log-probs{kind} differ by {mean} in the mean; {limit} at most")
    if not gaps and not wrong:
        wrong.append("no token that the reference finds likely was compared")
    if choices:
        first = choices[0]
        wrong.append(
            f"{len(choices)} likeliest tokens are others, the first in {first['case']}, step {first['step']}: "
            f"{first['got']}, expected {first['expected']}"
        )
    return numbers, wrong


def _fault(case: Followed, reply: Reply) -> str:
    if reply.fault:
        return f"{case.name}: {reply.fault}"
    if tuple(reply.tokens) != case.golden:
        return f"{case.name}: the engine took {reply.tokens}, not the tokens it was given"
    if len(reply.best) != len(case.golden):
        return (
            f"{case.name}: the likeliest token of {len(reply.best)} steps, not {len(case.golden)}"
        )
    return ""


def _rounded(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 6) if values else None
