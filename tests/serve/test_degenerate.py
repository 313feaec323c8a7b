"""Five answers, of which one is healthy (case F46)."""

from __future__ import annotations

import math

import pytest

from dih20.serve.gate.degenerate import degenerate_answer, degenerate_log_probs


@pytest.mark.parametrize(
    ("tokens", "log_probs", "reason"),
    [
        ([5, 6, 7, 8], [0.0, 0.0, 0.0, 0.0], "every log-prob is 0.0"),
        ([5, 6, 7, 8], [-1.5, -1.5, -1.5, -1.5], "do not depend on the tokens"),
        ([5, 6, 7, 8], [-0.1, math.nan, -0.2, -0.1], "not a number"),
        ([5, 5, 5, 5], [-0.1, -0.2, -0.1, -0.3], "token 5 repeated 4 times"),
        ([5, 6], [0.3, -0.1], "above 0"),
    ],
)
def test_a_degenerate_answer_is_refused_with_its_reason(
    tokens: list[int], log_probs: list[float], reason: str
) -> None:
    assert reason in (degenerate_answer(tokens, log_probs) or "")


def test_a_healthy_answer_passes() -> None:
    assert degenerate_answer([5, 6, 5, 8], [-0.1, -1.2, -0.01, -0.3]) is None


def test_a_short_sure_answer_is_not_suspected() -> None:
    assert degenerate_log_probs([0.0, 0.0]) is None
