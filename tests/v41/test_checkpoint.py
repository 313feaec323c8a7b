"""The released checkpoint format: bytes written by hand are read right, faults are named."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.v41.tiny import CONFIG, compressed_ids, random_weights
from v41.checkpoint import CheckpointReader, load_weights, write_checkpoint
from v41.checkpoint.blocks import (
    dequantise_blocks,
    dequantise_expert,
    quantise_blocks,
    requantise_to_gemm_blocks,
)
from v41.checkpoint.reading import INDEX
from v41.errors import CheckpointError
from v41.model import Reference
from v41.numerics import Numerics

pytestmark = pytest.mark.torch
RAW_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "text_config": dataclasses.asdict(CONFIG),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(target, RAW_CONFIG, random_weights(CONFIG, 1), shard_bytes=1 << 19)
    return target


def test_an_fp8_block_written_by_hand_is_read_with_the_scale_of_its_own_32_by_32_block() -> None:
    codes = torch.full((64, 64), 0x38, dtype=torch.uint8)  # 1.0
    scales = torch.tensor([[127, 128], [126, 130]], dtype=torch.uint8)
    values = dequantise_blocks(codes, scales, 32)
    assert [values[0, 0], values[0, 32], values[32, 0], values[63, 63]] == [1.0, 2.0, 0.5, 8.0]


def test_an_expert_row_written_by_hand_has_the_even_channel_low() -> None:
    packed = torch.zeros((1, 32), dtype=torch.int8)
    packed[0, 0] = 0x21  # 0.5, 1.0
    packed[0, 16] = -16  # 0xF0: 0, -6
    values = dequantise_expert(packed, torch.tensor([[128, 126]], dtype=torch.uint8))
    assert values[0, :2].tolist() == [1.0, 2.0]
    assert values[0, 32:34].tolist() == [0.0, -3.0]


def test_values_that_fp8_blocks_can_hold_come_back_bit_for_bit() -> None:
    values = dequantise_blocks(*quantise_blocks(torch.randn(96, 70), 32), 32)
    assert torch.equal(values, dequantise_blocks(*quantise_blocks(values, 32), 32))


def test_a_written_checkpoint_reads_back_to_a_model_that_answers_the_same(folder: Path) -> None:
    reader = CheckpointReader(folder)
    assert reader.config == CONFIG
    assert reader.extra == []
    weights = load_weights(reader, "trained")
    again = folder.parent / "again"
    write_checkpoint(again, RAW_CONFIG, weights, shard_bytes=1 << 19)
    for path in sorted(folder.iterdir()):
        # wo_a is bf16 in the trained mode and FP8 in the file, so only its shard may differ.
        assert (again / path.name).exists(), path.name
    prompt = torch.arange(3, 20).unsqueeze(0)
    logits = []
    for source in (weights, load_weights(CheckpointReader(again), "trained")):
        model = Reference(
            CONFIG, source, numerics=Numerics.of("trained"), compressed_ids=compressed_ids(CONFIG)
        )
        logits.append(model.extend(prompt, model.new_cache()))
    assert torch.equal(*logits)


def test_mode_sm90_holds_weights_that_128_by_128_blocks_can_hold(folder: Path) -> None:
    name = "layers.0.attn.wq_b.weight"
    exact = load_weights(CheckpointReader(folder), "exact")[name]
    sm90 = load_weights(CheckpointReader(folder), "sm90")[name]
    assert torch.equal(sm90, dequantise_blocks(*quantise_blocks(sm90, 128), 128))
    # Blocks of like size share their power of two, and then nothing is lost.
    assert torch.equal(exact, sm90)


def test_requantising_loses_bits_only_far_below_the_largest_value_of_a_block() -> None:
    values = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    values[32:64, 32:64] *= 2.0**-12
    held = dequantise_blocks(*quantise_blocks(values, 32), 32)
    again = requantise_to_gemm_blocks(held)
    corner = torch.zeros(128, 128, dtype=torch.bool)
    corner[32:64, 32:64] = True
    assert torch.equal(held[~corner], again[~corner])
    assert not torch.equal(held[corner], again[corner])
    scale = 2.0 ** math.ceil(math.log2(held.abs().max() / 448))
    assert (held - again).abs().max() <= scale * 2.0**-10


def edited(folder: Path, tmp_path: Path) -> Path:
    """A copy whose files may be broken."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_a_truncated_shard_is_named(folder: Path, tmp_path: Path) -> None:
    copy = edited(folder, tmp_path)
    shard = sorted(copy.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=shard.name):
        CheckpointReader(copy)


def test_a_missing_tensor_is_named(folder: Path, tmp_path: Path) -> None:
    copy = edited(folder, tmp_path)
    index = json.loads((copy / INDEX).read_text())
    del index["weight_map"]["layers.3.attn.attn_sink"]
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"layers\.3\.attn\.attn_sink"):
        CheckpointReader(copy)


def test_another_config_is_refused_with_the_first_tensor_that_does_not_fit(
    folder: Path, tmp_path: Path
) -> None:
    copy = edited(folder, tmp_path)
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["moe_intermediate_size"] = 256
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"w1\.weight is .* \[128, 128\]"):
        CheckpointReader(copy)


def test_a_missing_config_key_is_named(folder: Path, tmp_path: Path) -> None:
    copy = edited(folder, tmp_path)
    config = json.loads((copy / "config.json").read_text())
    del config["text_config"]["index_topk"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="index_topk"):
        CheckpointReader(copy)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        CheckpointReader(tmp_path)


def test_names_may_carry_the_model_prefix(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copy = edited(folder, tmp_path)
    for shard in copy.glob("*.safetensors"):
        save_file({f"model.{n}": t for n, t in load_file(shard).items()}, shard)
    index = json.loads((copy / INDEX).read_text())
    index["weight_map"] = {f"model.{n}": s for n, s in index["weight_map"].items()}
    (copy / INDEX).write_text(json.dumps(index))
    reader = CheckpointReader(copy)
    assert reader.read("norm.weight").shape == (CONFIG.hidden_size,)
