"""What explain says of a wheel file alone and of an image's labels; engines are asked in test_containers.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_image
from dih20.console import Console
from dih20.errors import UsageError
from dih20.explain.command import explain
from dih20.explain.here import compare_with_here
from dih20.explain.image import compare_with_here as compare_image
from dih20.explain.image import explain_image
from dih20.image.step_plan import chosen_base, final_labels, plan_steps
from dih20.image.steps import load_variant_steps
from dih20.lock import Lock
from tests.provenance.records import record_for, wheel_with


@pytest.mark.parametrize("name", ["deep_ep", "deep_gemm", "deepinfer", "h20_ops", "h20_probe", "flash_mla"])  # fmt: skip
def test_a_wheel_of_what_is_here_would_be_a_hit(name: str, tmp_path: Path) -> None:
    answer = compare_with_here(record_for(name))
    assert answer.lines == ["hit: lock and tree here give this identity"]


@pytest.mark.parametrize("part", ["source", "recipe", "procedure", "environment", "headers"])
def test_what_would_have_to_change_for_a_hit_is_named(part: str, tmp_path: Path) -> None:
    record = record_for("deep_gemm")
    older = record.model_copy(update={"parts": {**record.parts, part: "0" * 64}})
    answer = compare_with_here(older)
    assert answer.is_hit is False
    (line,) = answer.lines
    assert line.startswith(f"miss: {part}: {'0' * 12} -> ")


def test_another_torch_is_the_images_affair_and_not_a_miss(tmp_path: Path) -> None:
    record = record_for("deep_gemm")
    elsewhere = record.model_copy(update={"parts": {**record.parts, "torch": "2.14 git a cuda 13"}})
    assert compare_with_here(elsewhere).is_hit


def test_a_recipe_that_is_not_here_is_not_known_and_no_error(tmp_path: Path) -> None:
    record = record_for("h20_ops").model_copy(update={"name": "gone"})
    answer = compare_with_here(record)
    assert answer.is_hit is None
    assert "no recipe here builds gone" in answer.lines[0]


def test_a_wheel_file_alone_says_where_it_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_for("deepinfer")
    wheel = wheel_with(record, tmp_path)
    monkeypatch.setenv("DI_LOCK", str(tmp_path / "no-lock-here"))
    result = explain(Console(), str(wheel), sbom=True)
    out = capsys.readouterr().out
    for part in (
        "recipe       deepinfer (distribution deepinfer)",
        "sdist deepinfer 0.1.0",
        record.edits[0].id,
        record.identity,
        "not known: no lock at",
    ):
        assert part in out
    assert result["record"]["edits"][0]["text"] == record.edits[0].text
    assert result["sbom"]["bomFormat"] == "CycloneDX"
    json.dumps(result)


def test_a_file_that_is_no_wheel_is_named_before_an_engine_is_asked(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="is there and is no wheel"):
        explain(Console(), str(tmp_path / "notes.txt"))


def test_a_wheel_that_is_not_there_and_a_wheel_on_a_host_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        explain(Console(), str(tmp_path / "a.whl"))
    with pytest.raises(UsageError, match="with --host"):
        explain(Console(), "a.whl", host="nv-h20")


@pytest.fixture
def attrs() -> dict[str, Any]:
    """What an engine says of the image that lock and tree here give."""
    lock = Lock.load()
    plans = plan_steps(chosen_base(load_image("di-h20"), "stand-in"), lock)
    labels = {
        "dih20.owner": "dih20",
        "dih20.base": "stand-in",
        "dih20.step": plans[-1].step.name,
        "dih20.step-key": plans[-1].key,
        "dih20.step-parts": json.dumps(plans[-1].inputs.parts),
        **final_labels(lock, lock.base("stand-in"), plans[-1].key),
    }
    return {"Id": "sha256:" + "1" * 64, "Config": {"Labels": labels}, "RootFS": {"Layers": ["a"]}}


def test_an_image_of_what_is_here_is_a_hit_and_has_a_bill(
    attrs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    result = explain_image(Console(), attrs, "di-h20:x", with_sbom=True)
    assert result["cache"]["hit"] is True
    assert "cache        hit" in capsys.readouterr().out
    lock = Lock.load()
    files = [*lock.base_debs("stand-in"), *lock.debs("stand-in"), *lock.header_wheels()]
    files += [lock.nccl(), *lock.requirements(lock.base("stand-in").python_tag)]
    bill = result["sbom"]["components"]
    hashes = {h["content"] for component in bill for h in component.get("hashes", ())}
    assert hashes == {file.sha256 for file in files}


def test_an_image_of_a_variant_is_compared_with_the_variants_steps(attrs: dict[str, Any]) -> None:
    lock = Lock.load()
    variant = load_image("di-h20").variant("serve-cpu")
    last = plan_steps(variant, lock, None, load_variant_steps("serve-cpu"))[-1]
    changed = {"dih20.step": last.step.name, "dih20.identity": last.key}
    answer = compare_image({**attrs["Config"]["Labels"], **changed})
    assert answer.is_hit


def test_an_image_of_another_lock_says_what_changed(attrs: dict[str, Any]) -> None:
    labels = attrs["Config"]["Labels"]
    parts = json.loads(labels["dih20.step-parts"])
    changed = {**labels, "dih20.identity": "0" * 64, "dih20.lock": "9" * 64}
    changed["dih20.step-parts"] = json.dumps({**parts, "script": "0" * 64, "step below": "0" * 64})
    answer = compare_image(changed)
    assert answer.is_hit is False
    assert answer.changed[0] == f"script of step {labels['dih20.step']}"
    assert answer.changed[1].startswith("a step below")
    assert answer.changed[2].startswith("the lock: 999999999999 there")


def test_a_bill_out_of_another_lock_is_refused(attrs: dict[str, Any]) -> None:
    attrs["Config"]["Labels"]["dih20.lock"] = "9" * 64
    with pytest.raises(UsageError, match="built from lock 999999999999"):
        explain_image(Console(), attrs, "di-h20:x", with_sbom=True)


def test_an_image_of_somebody_else_is_refused(attrs: dict[str, Any]) -> None:
    attrs["Config"]["Labels"] = {}
    with pytest.raises(UsageError, match=r"no label dih20\.owner"):
        explain_image(Console(), attrs, "debian:13", with_sbom=False)
