"""Judge one answer: ids, text, log-probs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dih20.serve.gate.degenerate import degenerate_answer


@dataclass(frozen=True, kw_only=True)
class Known:
    """A question and what a healthy model answers.

    prompt: text, or None when prompt_ids are recorded. contains: must be in the decoded text.
    ids: the first ids of the answer, exact; empty when never recorded.
    lowest_log_prob: below it an id is no answer of this model, though it is the greedy one.
    """

    question: str
    prompt: str
    contains: str
    prompt_ids: Sequence[int] = ()
    ids: Sequence[int] = ()
    lowest_log_prob: float = -3.0
    max_tokens: int = 16
    whole: bool = False  # the text must be exactly `contains`


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the engine answered."""

    ids: Sequence[int]
    text: str
    log_probs: Sequence[float]
    seconds: float = 0.0


def judge(known: Known, given: Given, first_ids: int) -> str | None:
    """Give why this answer is wrong, or None."""
    if not given.ids:
        return f"{known.question!r}: no token came"
    if reason := degenerate_answer(given.ids, given.log_probs):
        return f"{known.question!r}: {reason}"
    want = list(known.ids[:first_ids])
    got = list(given.ids[: len(want)])
    if got != want:
        return f"{known.question!r}: the first ids are {got} ({given.text!r}), known are {want}"
    wrong = given.text != known.contains if known.whole else known.contains not in given.text
    if wrong:
        return f"{known.question!r}: the answer is {given.text!r}, known is {known.contains!r}"
    low = min(given.log_probs[: max(1, len(want))])
    if low < known.lowest_log_prob:
        return f"{known.question!r}: a log-prob is {low:.2f}, known is at least {known.lowest_log_prob}"
    return None
