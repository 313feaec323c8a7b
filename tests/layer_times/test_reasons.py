"""Nothing recorded is further than three times from its roofline without a line that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dih20.engine_check import here
from dih20.errors import UsageError
from dih20.layer_times.commit import commit_of_tree
from dih20.layer_times.reasons import FAR, REASONS, annotate, open_questions
from dih20.layer_times.shape import KINDS
from dih20.paths import REPOSITORY

EVIDENCE = REPOSITORY / "docs/evidence/engine-layers-h200.json"


def record(component: str, far: float, **more: Any) -> dict[str, Any]:
    row = {"component": component, "us": 1.0, "times_bound": far, **more}
    return {"passes": {"decode": {"layers": [{"layer": 0, "us": 1.0, "components": [row]}]}}}


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = found["passes"]["decode"]["layers"][0]["components"][0]
    return row


def annotated(found: dict[str, Any]) -> list[str]:
    annotate(found)
    return open_questions(found)


def test_a_far_component_gets_its_operators_line() -> None:
    found = record("experts: combine", FAR + 1)
    assert annotated(found) == []
    assert row_of(found)["why"] == REASONS["combine"]


def test_a_far_component_without_a_line_is_named() -> None:
    (line,) = annotated(record("experts: new_operator", FAR + 1))
    assert "decode: layer 0: no reason is written for experts: new_operator" in line


def test_a_line_goes_when_the_component_is_near_again() -> None:
    found = record("experts: combine", FAR, why="old")
    assert annotated(found) == []
    assert "why" not in row_of(found)


@pytest.mark.parametrize("us", ["not timed: no time left", "RuntimeError: x", None, 0.0])
def test_a_component_or_layer_without_a_time_is_named(us: Any) -> None:
    found = record("experts: combine", FAR, us=us)
    del row_of(found)["times_bound"]
    assert annotated(found) == [f"decode: layer 0: experts: combine has no time: {us}"]
    found = record("experts: combine", FAR)
    found["passes"]["decode"]["layers"][0]["us"] = us
    assert annotated(found) == [f"decode: layer 0 has no time: {us}"]


def test_a_record_of_nothing_is_named() -> None:
    assert open_questions({}) == ["no pass was timed"]
    assert open_questions({"passes": {"decode": {"layers": []}}}) == ["decode: no layer was timed"]


def run_bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    bench = str(REPOSITORY / "bench/engine_layers.py")
    return subprocess.run(
        [sys.executable, bench, *arguments],
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
    )


def test_annotating_a_record_with_an_open_question_ends_with_1(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record("experts: combine", FAR, us="not timed: no time left")))
    done = run_bench("--annotate", "--output", str(path))
    assert done.returncode == 1 and "has no time: not timed" in done.stdout


def test_the_commit_is_the_bundles_where_git_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("H20_OPS_COMMIT", "DIH20_COMMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(here, "REPOSITORY", tmp_path)
    with pytest.raises(UsageError, match="no file COMMIT"):
        commit_of_tree("")
    (tmp_path / "COMMIT").write_text("0123abc\n")
    assert commit_of_tree("") == "0123abc"
    assert commit_of_tree("4567def") == "4567def"


def test_the_evidence_has_every_kind_of_layer_in_both_passes_and_no_open_question() -> None:
    found = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    decode, prefill = found["passes"].values()
    assert open_questions(found) == []
    assert found["card"] == "NVIDIA H200"
    for each in (decode, prefill):
        assert [layer["kind"] for layer in each["layers"]] == list(KINDS)
        for layer in each["layers"]:
            rows = layer["components"]
            assert all(isinstance(row["us"], float) for row in [layer, *rows]), layer["kind"]
            far = [row for row in rows if row["times_bound"] > FAR]
            assert all(row.get("why") for row in far), layer["kind"]
            parts = sum(row["us"] for row in rows)
            assert 0.8 * layer["us"] < parts < 1.2 * layer["us"], layer["kind"]
