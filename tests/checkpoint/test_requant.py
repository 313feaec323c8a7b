"""`inv checkpoint requant`: what SM90's formats lose of a checkpoint, tensor by tensor."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from dih20.checkpoint.verbs import run_verb
from dih20.console import Console
from dih20.errors import ConfigError, UsageError
from v41.canary import FOLDER
from v41.checkpoint.reading import INDEX

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is there already: these tests run in it."""
    monkeypatch.setattr("dih20.checkpoint.requantising.ensure", lambda ui, group: None)


def test_the_canary_loses_nothing_of_its_experts(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_verb(Console(), "requant", str(FOLDER), tensors=False)
    assert result["totals"]["fp4"]["num_inexact"] == 0
    assert result["totals"]["fp4"]["spread"] <= 14
    dense = result["totals"]["fp8"]
    assert 0 < dense["num_inexact"] < dense["num_values"] // 1000
    assert set(result["worst"]) and "layers.0.attn.wq_a.weight" in capsys.readouterr().out


def test_a_checkpoint_with_far_scales_is_said_to_lose_bits(tmp_path: Path) -> None:
    copy = tmp_path / "far"
    shutil.copytree(FOLDER, copy)
    name = "layers.0.ffn.experts.0.w1.scale"
    set_scale_bytes(copy, name, {0: 140})
    result = run_verb(Console(), "requant", str(copy), tensors=False)
    assert result["totals"]["fp4"]["num_inexact"] > 0
    assert "layers.0.ffn.experts.0.w1.weight" in result["worst"]
    set_scale_bytes(copy, name, {0: 255})
    with pytest.raises(ConfigError, match=r"layers\.0\.ffn\.experts\.0\.w1"):
        run_verb(Console(), "requant", str(copy), tensors=False)


def test_a_gpu_is_used_only_when_asked_for_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError) as refused:
        run_verb(Console(), "requant", str(FOLDER), tensors=False, device="cuda")
    assert "sees no CUDA device" in refused.value.found
    assert "SM90" in refused.value.expected
    with pytest.raises(UsageError, match="device 'gpu'"):
        run_verb(Console(), "requant", str(FOLDER), tensors=False, device="gpu")


def test_a_verb_that_is_none_lists_the_two_there_are() -> None:
    with pytest.raises(UsageError, match="no verb 'convert'"):
        run_verb(Console(), "convert", str(FOLDER), tensors=False)


def set_scale_bytes(folder: Path, name: str, changed: dict[int, int]) -> None:
    """Write bytes of one stored tensor in place."""
    shard = folder / json.loads((folder / INDEX).read_text())["weight_map"][name]
    data = bytearray(shard.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    start, _ = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    for offset, value in changed.items():
        data[8 + length + start + offset] = value
    shard.write_bytes(data)
