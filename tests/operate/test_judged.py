"""F46 on the way home: `ask` judges what a server answers, whoever wrote that server."""

from __future__ import annotations

from typing import Any

import pytest

from dih20.errors import DegenerateAnswer
from dih20.operate.judged import read, require_healthy


def completion(*steps: tuple[str, float | None]) -> dict[str, Any]:
    content = [{"token": token, "logprob": value} for token, value in steps]
    message = {"content": "".join(token for token, _ in steps)}
    return {"choices": [{"message": message, "logprobs": {"content": content}}]}


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([("a", 0.0), ("b", 0.0), ("c", 0.0)], "every log-prob is 0.0"),
        ([("a", -9999.0), ("b", -9999.0), ("c", -9999.0)], "do not depend on the tokens"),
        ([("a", -0.1), ("b", None), ("c", -0.2)], "not a number"),
        ([("a", -0.1), ("a", -0.2), ("a", -0.3)], "repeated 3 times"),
        ([("a", 0.5), ("b", -0.1)], "above 0"),
        ([], "no log-prob came"),
    ],
)
def test_a_degenerate_answer_is_an_error_with_its_reason(
    steps: list[tuple[str, float | None]], why: str
) -> None:
    answer = read("q", completion(*steps))
    assert why in answer.verdict
    with pytest.raises(DegenerateAnswer, match=why) as refused:
        require_healthy(answer)
    assert refused.value.exit_code == 89


def test_a_healthy_answer_passes() -> None:
    answer = read("q", completion(("blue", -0.1), (" sky", -0.25), (".", -0.4)))
    assert (answer.text, answer.verdict) == ("blue sky.", "")
    require_healthy(answer)
