"""When the script that asks a served canary calls its answers right, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.served_answers import main, passed


def record(**changed: Any) -> dict[str, Any]:
    tokens = [{"name": "63 tokens", "log_prob": -0.011, "reference": -0.01}]
    chats = {"right": 32, "asked": 32}
    whole = {"exit_code": 0, "seconds_to_ready": 3.0, "chats": chats, "long_prompts": tokens}
    return {**whole, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"exit_code": 81},
        {"seconds_to_ready": None},
        {"chats": {"right": 31, "asked": 32}},
        {"chats": {"right": 0, "asked": 0}},
        {"long_prompts": []},
        {"long_prompts": [{"name": "63 tokens", "log_prob": -0.5, "reference": -0.01}]},
        {"long_prompts": [{"name": "63 tokens", "status": 503, "text": "not ready"}]},
    ],
)
def test_one_thing_that_is_wrong_is_enough(changed: dict[str, Any]) -> None:
    assert passed(record())
    assert not passed(record(**changed))


def test_without_a_model_or_values_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--values", str(tmp_path / "none.json"), "--output", str(tmp_path / "out.json")]
    for arguments, said in ((given, "--model"), ([*given, "--engine", "reference"], "--prepare")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
