"""Write fp32 weights as a checkpoint in the released format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from h20_ops.formats import quantise_groups
from v41.checkpoint.blocks import CHECKPOINT_BLOCK, ENGRAM_RULE, quantise_blocks, quantise_expert
from v41.checkpoint.reading import INDEX
from v41.config import ModelConfig
from v41.errors import CheckpointError
from v41.tensors import TensorSpec, text_tensors


def write_checkpoint(
    folder: Path,
    config: dict[str, Any],
    weights: Mapping[str, torch.Tensor],
    *,
    shard_bytes: int = 1 << 30,
) -> None:
    """Quantise and write every tensor of the text model, in shards, with index and config.json.

    A table and its scale stay in one shard, as the engine's loader wants them. The same weights
    give the same bytes.

    Args:
        config: the released config.json as a dictionary.
        weights: fp32, every name of v41.tensors.text_tensors.
    """
    from safetensors.torch import save_file

    specs = list(text_tensors(ModelConfig.from_hf(config)))
    missing = [spec.name for spec in specs if spec.name not in weights]
    if missing:
        raise CheckpointError(
            f"no weights for {len(missing)} tensors, the first {missing[0]}",
            "every tensor of the text model that config.json describes",
            "give the missing weights, or the config they were made for",
        )
    folder.mkdir(parents=True, exist_ok=True)
    shards = list(_shards(specs, weights, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    total = sum(t.numel() * t.element_size() for shard in shards for t in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _shards(
    specs: list[TensorSpec], weights: Mapping[str, torch.Tensor], limit: int
) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for spec in specs:
        stored = store_one(spec, weights[spec.name])
        grown = sum(t.numel() * t.element_size() for t in stored.values())
        if shard and size + grown > limit:
            yield shard
            shard, size = {}, 0
        shard |= stored
        size += grown
    yield shard


def store_one(spec: TensorSpec, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Give the stored tensors of one weight: values, and its scale where the format has one."""
    assert tuple(weight.shape) == spec.shape, f"{spec.name}: {tuple(weight.shape)} != {spec.shape}"
    weight = weight.detach().float().cpu()
    if spec.storage == "bf16":
        return {spec.name: weight.bfloat16().contiguous()}
    if spec.storage == "fp32":
        return {spec.name: weight.contiguous()}
    if spec.storage == "fp4":
        codes, scales = quantise_expert(weight)
        values = codes.view(torch.int8)
    elif spec.storage == "engram":
        codes, scales = quantise_groups(weight, ENGRAM_RULE)
        values = codes.view(torch.float8_e4m3fn)
    else:
        codes, scales = quantise_blocks(weight, CHECKPOINT_BLOCK)
        values = codes.view(torch.float8_e4m3fn)
    assert spec.scale_name is not None, f"{spec.name}: {spec.storage} has a scale"
    return {
        spec.name: values.contiguous(),
        spec.scale_name: scales.view(torch.float8_e8m0fnu).contiguous(),
    }
