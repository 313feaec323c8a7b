from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import NotForSm90, UsageError, WheelError
from dih20.lock import Lock
from dih20.wheels.command import Choice, build_vendor, newest_image
from dih20.wheels.evidence import label_of, write_evidence
from dih20.wheels.rows import Row
from dih20.wheels.store import Store
from dih20.wheels.wheel_set import _raise_for_missing
from tests.wheels.binaries import recipe, wheel_of
from tests.wheels.test_identity import PARTS
from tests.wheels.test_plan import FACTS


class _Engine:
    """Images as docker lists them; remembers what was asked for."""

    def __init__(self, *images: tuple[str, str]) -> None:
        self.asked: Any = None
        self._images = [
            SimpleNamespace(tags=[tag], attrs={"Created": made}) for tag, made in images
        ]
        self.images = SimpleNamespace(list=self._list)

    def _list(self, filters: Any) -> list[Any]:
        self.asked = filters["label"]
        return self._images


def test_the_newest_finished_image_of_the_lock_in_force_is_taken() -> None:
    lock = Lock.load()
    engine: Any = _Engine(
        ("di-h20:old", "2026-11-01"), ("di-h20:new", "2026-11-02"), ("di-h20-torch:x", "2026-11-03")
    )
    assert newest_image(engine, lock) == "di-h20:new"
    assert f"dih20.lock={lock.identity}" in engine.asked


def test_no_image_of_the_lock_names_the_command_that_makes_one() -> None:
    engine: Any = _Engine()
    with pytest.raises(WheelError, match="no di-h20 image") as caught:
        newest_image(engine, Lock.load())
    assert "build-image" in caught.value.remedy


@pytest.mark.parametrize("bounds", [{"jobs": -1}, {"memory_gb": -4.0}])
def test_negative_bounds_are_refused_before_anything_is_looked_at(bounds: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        build_vendor(Console(as_json=True), Choice(), **bounds)


def test_a_vendor_that_needs_torch_is_told_how_to_get_it() -> None:
    needs = recipe().model_copy(update={"build": recipe().build.model_copy(update={"torch": True})})
    row = Row(
        recipe=needs, status="skipped", note="not built: the image has no torch to build against"
    )
    with pytest.raises(WheelError) as caught:
        _raise_for_missing([row])
    assert not isinstance(caught.value, NotForSm90)
    assert "--torch" in caught.value.remedy
    optional = needs.model_copy(update={"optional": True})
    _raise_for_missing([dataclasses.replace(row, recipe=optional)])


def test_evidence_carries_the_label_that_keeps_it_from_being_misread(tmp_path: Path) -> None:
    facts = dataclasses.replace(FACTS, labels={"dih20.base": "stand-in"})
    assert label_of(facts) == "stand-in cp313, not installable on the vLLM base"
    assert "stand-in" not in label_of(dataclasses.replace(FACTS, labels={"dih20.base": "vllm"}))
    store = Store(tmp_path / "wheels")
    built = wheel_of(tmp_path / "built", {"vendor/__init__.py": ""}, tag="py3-none-any")
    wheel = store.add(
        built, name="vendor", parts=PARTS, verdicts=[], build={"image": "sha256:1", "seconds": 2}
    )
    rows = [
        Row(recipe=recipe(), status="built", note="never built", wheel=wheel),
        Row(recipe=recipe(), status="skipped", note="by policy"),
    ]
    write_evidence(Console(as_json=True), tmp_path / "evidence.json", facts, rows)
    written = json.loads((tmp_path / "evidence.json").read_text())
    assert written["label"] == label_of(facts)
    first, second = written["wheels"]
    assert first["sha256"] == wheel.sha256
    assert first["build"] == {"seconds": 2}
    assert second == {"name": "vendor", "status": "skipped", "note": "by policy"}


def test_the_recorded_vendor_wheels_are_labelled_and_kept_every_promise() -> None:
    from dih20.paths import REPOSITORY

    evidence = json.loads((REPOSITORY / "docs" / "evidence" / "vendor-wheels.json").read_text())
    assert evidence["label"] == "stand-in cp313, not installable on the vLLM base"
    by_name = {wheel["name"]: wheel for wheel in evidence["wheels"] if "sha256" in wheel}
    assert {"deep_gemm", "deep_ep", "deepinfer"} <= set(by_name)
    for name in ("deep_gemm", "deep_ep", "deepinfer"):
        wheel = by_name[name]
        assert wheel["size_bytes"] > 1e6
        assert wheel["build"]["peak_memory_bytes"] > 1e9
        assert {verdict["status"] for verdict in wheel["verdicts"]} <= {"ok", "not applicable"}
    assert "libcuda.so.1" in str(by_name["deepinfer"]["verdicts"])
