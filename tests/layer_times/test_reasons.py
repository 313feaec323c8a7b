"""Nothing recorded is further than three times from its roofline without a line that says why."""

from __future__ import annotations

import json
from typing import Any

from dih20.layer_times.reasons import FAR, REASONS, annotate
from dih20.layer_times.shape import KINDS
from dih20.paths import REPOSITORY

EVIDENCE = REPOSITORY / "docs/evidence/engine-layers-h200.json"


def record(component: str, far: float, **more: Any) -> dict[str, Any]:
    row = {"component": component, "us": 1.0, "times_bound": far, **more}
    return {"passes": {"decode": {"layers": [{"layer": 0, "components": [row]}]}}}


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = found["passes"]["decode"]["layers"][0]["components"][0]
    return row


def test_a_far_component_gets_its_operators_line() -> None:
    found = record("experts: combine", FAR + 1)
    assert annotate(found) == []
    assert row_of(found)["why"] == REASONS["combine"]


def test_a_far_component_without_a_line_is_named() -> None:
    assert annotate(record("experts: new_operator", FAR + 1)) == ["experts: new_operator"]


def test_a_line_goes_when_the_component_is_near_again() -> None:
    found = record("experts: combine", FAR, why="old")
    assert annotate(found) == []
    assert "why" not in row_of(found)


def test_the_evidence_has_every_kind_of_layer_in_both_passes_and_no_open_question() -> None:
    found = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    decode, prefill = found["passes"].values()
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
