"""`inv canary` and `inv checkpoint inspect`: what they print, and how they fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dih20.canary import verbs
from dih20.checkpoint.inspecting import inspect
from dih20.console import Console
from dih20.errors import ConfigError, TestsFailed, UsageError
from v41.canary import FOLDER
from v41.canary.ablation import ABLATIONS
from v41.canary.answering import Canary
from v41.canary.vision_shard import SHARD, vision_tensors, write_with_vision
from v41.checkpoint import CheckpointReader
from v41.checkpoint.reading import INDEX

pytestmark = pytest.mark.torch
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is there already: these tests run in it."""
    monkeypatch.setattr(verbs, "ensure", lambda ui, group: None)
    monkeypatch.setattr("dih20.checkpoint.inspecting.ensure", lambda ui, group: None)


@pytest.fixture
def broken(canary: Canary) -> Canary:
    """Every expert has the weights of the next one."""
    permute = next(a for a in ABLATIONS if a.name == "experts permuted")
    return permute.change(canary)


@pytest.fixture
def short_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts close by: what the table looks like does not depend on the distance."""
    from v41.canary import facts

    real = facts.fact_context
    monkeypatch.setattr(
        facts, "fact_context", lambda seed: real(seed, sentences=30, facts=10, asked=4, far=60)
    )


@pytest.mark.usefixtures("short_facts")
def test_check_prints_every_answer(
    canary: Canary, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(verbs, "_load", lambda *_: canary)
    result = verbs.check(Console(), "trained", "", 1)
    shown = capsys.readouterr().out
    assert "中国的首都是哪里" in shown and "log-prob" in shown
    assert result["facts_right"] == 1.0 and result["fixed"] >= 24


@pytest.mark.usefixtures("short_facts")
def test_check_fails_when_an_answer_is_wrong(
    ui: Console, broken: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "_load", lambda *_: broken)
    with pytest.raises(TestsFailed, match="fixed answers wrong"):
        verbs.check(ui, "trained", "", 1)


def test_an_unknown_mode_is_refused(ui: Console) -> None:
    with pytest.raises(UsageError, match="fp8"):
        verbs.check(ui, "fp8", "", 1)


def test_an_unknown_verb_is_refused(ui: Console) -> None:
    with pytest.raises(UsageError, match="sing"):
        verbs.vision_shard(ui, "sing", "", "", only_plan=False)


def test_a_folder_that_exists_is_not_written_to(ui: Console, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already"):
        verbs.train(ui, str(tmp_path), 1, only_plan=False)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_writes_nothing(ui: Console, tmp_path: Path) -> None:
    verbs.vision_shard(ui, "vision-shard", "", str(tmp_path / "new"), only_plan=True)
    verbs.train(ui, str(tmp_path / "other"), 1, only_plan=True)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_shard_is_named(ui: Console, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER, copy)
    gone = sorted(copy.glob("*.safetensors"))[-1]
    gone.unlink()
    with pytest.raises(ConfigError, match=gone.name):
        inspect(ui, str(copy), tensors=False)


def test_inspect_says_what_the_canary_holds(capsys: Capture) -> None:
    result = inspect(Console(), str(FOLDER), tensors=True)
    shown = capsys.readouterr().out
    assert "reindex-r1-candidate-consumer" in shown and "layers.5.attn.wq_a.weight" in shown
    assert result["broken_rules"] == {} and result["extra"] == 0
    assert set(result["bytes"]) == {"bf16", "fp32", "fp8", "fp4", "engram"}


def test_inspect_warns_of_what_the_engine_would_refuse(tmp_path: Path, capsys: Capture) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER, copy)
    config: dict[str, Any] = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["sliding_window"] = 126
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert set(inspect(Console(), str(copy), tensors=False)["broken_rules"]) == {"window"}
    assert "sliding_window is a multiple of 4" in capsys.readouterr().out


def test_the_vision_shard_makes_a_whole_checkpoint_without_taking_room(tmp_path: Path) -> None:
    target = tmp_path / "whole"
    size = write_with_vision(FOLDER, target)
    reader = CheckpointReader(target)
    assert set(reader.extra) == set(vision_tensors(512))
    assert reader.size_bytes("vision.blocks.31.attn.wqkv.weight") == 3072 * 1024 * 2
    assert (target / SHARD).stat().st_size == size > 800e6
    assert (target / SHARD).stat().st_blocks * 512 < 10e6
    assert json.loads((target / INDEX).read_text())["weight_map"]["vision.norm.weight"] == SHARD
