"""A check of wheels says what it did not compare, and is no success when it compared nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dih20.console import Console
from dih20.errors import UsageError
from dih20.rebuild import wheels
from dih20.rebuild.wheel_pairs import WheelCheck
from dih20.wheels.plan import Skipped
from tests.wheels.vendors import vendor_recipe


@pytest.fixture
def skipped(tmp_path: Path) -> Skipped:
    return Skipped(recipe=vendor_recipe(tmp_path), note="needs torch; the image has none")


def test_a_check_that_has_nothing_to_compare_is_refused_with_the_reasons(
    monkeypatch: pytest.MonkeyPatch, skipped: Skipped
) -> None:
    client = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("dih20.image.engine.connect", lambda: client)
    monkeypatch.setattr(WheelCheck, "considered", lambda self, only: [skipped])
    monkeypatch.setattr(wheels, "facts_of", lambda client, image: None)
    with pytest.raises(UsageError, match="no wheel to compare in di:1: vendor: needs torch"):
        wheels.check(Console(as_json=True), image="di:1")
    assert wheels.check(Console(as_json=True), image="di:1", plan_only=True)["image"] == "di:1"


def test_the_result_names_what_was_not_compared(skipped: Skipped) -> None:
    left_out = wheels.not_compared([skipped, skipped])
    assert left_out == {"vendor": f"{skipped.note}; {skipped.note}"}
    result = wheels.judged(Console(as_json=True), "di:1", [], left_out)
    assert result["not_compared"] == left_out
