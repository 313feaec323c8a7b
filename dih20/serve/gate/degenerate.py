"""Answers that no healthy model gives: a server may return them with HTTP 200 all the same.

Seen in the field (deepseek-ai/DeepSeek-V3.2-Exp#49, vllm-project/vllm#52938): log-probs that are all
0.0, or the same at each step, or NaN, and one token repeated. DeepInfer reports log-probs after
temperature, so that a greedy run shows 0.0 everywhere: take them at temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_FEWEST_STEPS = 3  # of fewer steps nothing can be said about sameness


def degenerate_log_probs(log_probs: Sequence[float]) -> str | None:
    """Give why these log-probs (natural, one per step) cannot be a model's, or None."""
    if any(math.isnan(value) or value == math.inf for value in log_probs):
        return "a log-prob is not a number: the logits hold NaN or infinity"
    if any(value > 0.0 for value in log_probs):
        return f"a log-prob of {max(log_probs)} is above 0"
    if len(log_probs) < _FEWEST_STEPS:
        return None
    if all(value == 0.0 for value in log_probs):
        return "every log-prob is 0.0: logits saturated, or taken after a temperature near 0"
    if len(set(log_probs)) == 1:
        return f"every log-prob is {log_probs[0]}: the logits do not depend on the tokens"
    return None


def degenerate_answer(tokens: Sequence[int], log_probs: Sequence[float]) -> str | None:
    """Give why an answer is degenerate, or None; one log-prob per token."""
    assert len(tokens) == len(log_probs), f"{len(tokens)} tokens, {len(log_probs)} log-probs"
    if reason := degenerate_log_probs(log_probs):
        return reason
    if len(tokens) >= _FEWEST_STEPS and len(set(tokens)) == 1:
        return f"token {tokens[0]} repeated {len(tokens)} times"
    return None
