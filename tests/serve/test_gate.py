"""Nothing is ready before it has answered a known question rightly (F46)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import ConfigError, ServeError
from dih20.paths import REPOSITORY
from dih20.serve.gate.asking import Verdict
from dih20.serve.gate.judging import Given, Known, judge
from dih20.serve.gate.questions import canary_questions, known_questions, load_answers
from dih20.serve.gate.recording import record
from dih20.serve.service import CANARY_FOLDER
from dih20.serve.settings import Gate, Settings
from tests.serve.running import Server
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer

KNOWN = Known(
    question="capital?", prompt="capital?", contains="Beijing", ids=[5, 6, 7], log_probs=[-0.1] * 3
)
RIGHT = Given(prompt_ids=[1], ids=[5, 6, 7, 8], text="It is Beijing", log_probs=[-0.1, -0.2, 0, 0])


def test_a_right_answer_passes() -> None:
    assert judge(KNOWN, RIGHT, 8) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ids": [5, 6, 9, 8]}, "the first ids are [5, 6, 9]"),
        ({"ids": [5, 6], "log_probs": [-0.1, -0.2]}, "the first ids are [5, 6]"),
        ({"ids": [], "log_probs": []}, "no token came"),
        ({"text": "It is Paris"}, "the answer is 'It is Paris'"),
        ({"log_probs": [-0.1, -0.2, -9.0, -0.1]}, "log-prob 2 is -9.00"),
        ({"log_probs": [-0.1, -0.2, -0.9, -0.1]}, "recorded is -0.100 within 0.5"),
        ({"log_probs": [0.0, 0.0, 0.0, 0.0]}, "every log-prob is 0.0"),
        ({"log_probs": [-0.1, -0.1, -0.1, -0.1]}, "do not depend on the tokens"),
        ({"log_probs": [-0.1, math.nan, -0.2, -0.1]}, "not a number"),
        ({"ids": [5, 5, 5, 5]}, "token 5 repeated"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(change: dict[str, Any], why: str) -> None:
    reason = judge(KNOWN, replace(RIGHT, **change), 8)
    assert reason is not None
    assert why in reason
    assert "capital?" in reason


def test_only_the_first_ids_must_be_exact() -> None:
    other = replace(RIGHT, ids=[5, 6, 9, 8])
    assert judge(KNOWN, other, 2) is None


def test_other_prompt_ids_than_recorded_are_told_apart_from_a_wrong_answer() -> None:
    reason = judge(replace(KNOWN, prompt_ids=[1, 2]), RIGHT, 8)
    assert reason is not None
    assert "tokenizer or chat template" in reason


def test_without_ids_the_text_decides() -> None:
    bare = replace(KNOWN, ids=(), log_probs=())
    assert judge(bare, RIGHT, 8) is None
    assert judge(bare, replace(RIGHT, text="It is Paris"), 8) is not None


def test_the_built_in_answers_are_the_canarys() -> None:
    own = Tokenizer.load(CANARY_FOLDER / "tokenizer.json")
    by_text = {question.question: question for question in QUESTIONS}
    known = canary_questions()
    assert "北京" in [each.contains for each in known]
    for each in known:
        question = by_text[each.question]
        assert (each.prompt, each.contains) == (question.prompt, question.answer)
        assert list(each.ids) == [*own.encode(question.answer), 1]
        assert each.whole


def test_the_example_file_asks_for_beijing() -> None:
    answers = load_answers(REPOSITORY / "configs/answers.yaml")
    assert "北京" in [question.contains for question in answers.questions]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("questions: []", "questions"),
        ("questions: [{question: a}]", "contains"),
        ("questions: [{question: a, contains: b, temperatur: 1}]", "temperatur"),
        ("questions: [{question: a, contains: b, ask: sing}]", "ask"),
        ("questions: [", "not YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "answers.yaml").write_text(text)
    with pytest.raises(ConfigError, match=why):
        load_answers(tmp_path / "answers.yaml")


def answered(**change: Any) -> dict[str, Any]:
    row = {"rank": 0, "question": "capital?", "prompt_ids": [1], "ids": [5], "log_probs": [-0.1]}
    return row | change


def settings(tmp_path: Path, checkpoint: str) -> Settings:
    questions = {"questions": [{"question": "capital?", "contains": "Beijing"}]}
    (tmp_path / "answers.json").write_text(json.dumps(questions))
    gate = Gate(answers=tmp_path / "answers.json", recorded=tmp_path / "recorded.json")
    return Settings(gate=gate, identities={"checkpoint": checkpoint})


def test_recorded_ids_are_used_for_the_checkpoint_that_gave_them(tmp_path: Path) -> None:
    passed = Verdict(state="unrecorded", at=1.0, answers=[answered(), answered(rank=1)])
    record(tmp_path / "recorded.json", passed, {"checkpoint": "aaa", "image": "bbb"})
    (known,), remark = known_questions(settings(tmp_path, "aaa"))
    assert (known.ids, known.prompt_ids, known.log_probs, remark) == ((5,), (1,), (-0.1,), "")
    (known,), remark = known_questions(settings(tmp_path, "other"))
    assert known.ids == ()
    assert "aaa" in remark
    kept = json.loads((tmp_path / "recorded.json").read_text())
    assert kept["origin"] == {"checkpoint": "aaa", "image": "bbb", "at": "1970-01-01T00:00:01Z"}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    passed = Verdict(state="unrecorded", at=1.0, answers=[answered()])
    with pytest.raises(ServeError, match=r"Not a directory|File exists"):
        record(tmp_path / "file" / "recorded.json", passed, {})


def test_ranks_that_differ_are_not_recorded(tmp_path: Path) -> None:
    differ = Verdict(state="unrecorded", answers=[answered(), answered(rank=1, ids=[6])])
    with pytest.raises(ServeError, match="rank 1"):
        record(tmp_path / "recorded.json", differ, {})
    assert not (tmp_path / "recorded.json").exists()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("zeros", "every log-prob is 0.0"),
        ("nan", "not a number"),
        ("same", "do not depend on the tokens"),
        ("repeat", "repeated"),
    ],
)
def test_a_server_with_a_degenerate_engine_is_never_ready(
    tmp_path: Path, answer: str, why: str
) -> None:
    options = {"step_ms": 1, "answer": answer}
    with Server(
        tmp_path, ready=False, engine_options=options, deadlines={"failed_linger_s": 60}
    ) as server:
        server.wait_until(lambda: server.json("/startupz")["phase"] == "failed", "the gate")
        assert why in server.json("/readyz")["reason"]
        assert server.get("/readyz")[0] == 503


def test_recording_fills_ids_and_the_next_start_passes_by_them(tmp_path: Path) -> None:
    questions = [
        {"question": q.prompt, "contains": q.contains, "ask": "completion"}
        for q in canary_questions()
    ]
    (tmp_path / "answers.json").write_text(json.dumps({"questions": questions}))
    recorded = tmp_path / "recorded.json"
    gate = {"answers": str(tmp_path / "answers.json"), "recorded": str(recorded)}
    common: dict[str, Any] = {"engine_options": {"step_ms": 1}, "identities": {"checkpoint": "c"}}
    with Server(
        tmp_path / "first", gate=gate | {"record_answers": str(recorded)}, **common
    ) as first:
        assert first.json("/readyz")["gate"]["state"] == "unrecorded"
    origin = json.loads(recorded.read_text())["origin"]
    assert (origin["engine"], origin["checkpoint"]) == ("paced 1", "c")
    with Server(tmp_path / "second", gate=gate, **common) as second:
        assert second.json("/readyz")["gate"]["state"] == "passed"


def test_a_wrong_text_is_never_recorded(tmp_path: Path) -> None:
    questions = {"questions": [{"question": "1 2 3", "contains": "x y", "ask": "completion"}]}
    (tmp_path / "answers.json").write_text(json.dumps(questions))
    recorded = tmp_path / "recorded.json"
    gate = {"answers": str(tmp_path / "answers.json"), "record_answers": str(recorded)}
    deadlines = {"failed_linger_s": 60}
    with Server(
        tmp_path / "run", ready=False, gate=gate, engine_options={"step_ms": 1}, deadlines=deadlines
    ) as server:
        server.wait_until(lambda: server.json("/startupz")["phase"] == "failed", "the gate")
        assert "known is 'x y'" in server.json("/readyz")["reason"]
    assert not recorded.exists()
