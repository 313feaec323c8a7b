"""Judge one answer: ids, text, log-probs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dih20.serve.gate.degenerate import degenerate_answer, degenerate_log_probs


@dataclass(frozen=True, kw_only=True)
class Known:
    """A question and what a healthy model answers.

    prompt: a chat's only message, or a whole prompt. ids, log_probs: the answer as it was
    recorded; empty when it never was. lowest_log_prob: below it an id is no answer of this model,
    though it is the greedy one. whole: the text must be exactly `contains`.
    """

    question: str
    prompt: str
    contains: str
    chat: bool = False
    prompt_ids: Sequence[int] = ()
    ids: Sequence[int] = ()
    log_probs: Sequence[float] = ()
    tolerance: float = 0.5
    lowest_log_prob: float = -3.0
    max_tokens: int = 16
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the engine answered. ended: the last id is the end token."""

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    text: str
    log_probs: Sequence[float]
    ended: bool = False
    seconds: float = 0.0


def judge(known: Known, given: Given, first_ids: int) -> str | None:
    """Give why this answer is wrong, or None."""
    wrong = _wrong(known, given, first_ids)
    return None if wrong is None else f"{known.question!r}: {wrong}"


def _wrong(known: Known, given: Given, first_ids: int) -> str | None:
    if not given.ids:
        return "no token came"
    if reason := degenerate(given):
        return f"{reason} ({given.text!r})"
    if known.prompt_ids and list(given.prompt_ids) != list(known.prompt_ids):
        return "the tokenizer or chat template gives other prompt ids than were recorded"
    want = list(known.ids[:first_ids])
    got = list(given.ids[: len(want)])
    if got != want:
        return f"the first ids are {got} ({given.text!r}), known are {want}"
    if given.text != known.contains if known.whole else known.contains not in given.text:
        return f"the answer is {given.text!r}, known is {known.contains!r}"
    return _wrong_log_probs(known, given.log_probs, max(1, len(want)))


def degenerate(given: Given) -> str | None:
    """Give why no healthy model answers so; an end token does not make a repeated one better."""
    spoken = len(given.ids) - given.ended
    return degenerate_log_probs(given.log_probs) or degenerate_answer(
        given.ids[:spoken], given.log_probs[:spoken]
    )


def _wrong_log_probs(known: Known, got: Sequence[float], count: int) -> str | None:
    for place, value in enumerate(got[:count]):
        if value < known.lowest_log_prob:
            return f"log-prob {place} is {value:.2f}, known is at least {known.lowest_log_prob:g}"
    for place, (value, then) in enumerate(zip(got[:count], known.log_probs, strict=False)):
        if abs(value - then) > known.tolerance:
            return f"log-prob {place} is {value:.3f}, recorded is {then:.3f} within {known.tolerance:g}"
    return None
