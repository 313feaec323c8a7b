"""Turn stored tensors into the fp32 values that a numeric mode computes with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from h20_ops.formats import decode_ue8m0, dequantise_groups, load_ue8m0_scales
from h20_ops.formats.ue8m0 import MAX_PLAUSIBLE_EXPONENT
from v41.checkpoint.blocks import (
    CHECKPOINT_BLOCK,
    ENGRAM_RULE,
    dequantise_blocks,
    dequantise_expert,
    requantise_to_gemm_blocks,
)
from v41.checkpoint.reading import CheckpointReader
from v41.errors import CheckpointError
from v41.numerics import Mode
from v41.tensors import TensorSpec


def stream_weights(reader: CheckpointReader, mode: Mode) -> Iterator[tuple[str, torch.Tensor]]:
    """Give (name, fp32 values) of the text model one at a time, so that memory stays bounded."""
    for spec in reader.specs:
        yield spec.name, load_one(reader, spec, mode)


def load_weights(reader: CheckpointReader, mode: Mode) -> dict[str, torch.Tensor]:
    """Give all of them at once: for a model that fits in memory as fp32."""
    return dict(stream_weights(reader, mode))


def load_one(reader: CheckpointReader, spec: TensorSpec, mode: Mode) -> torch.Tensor:
    """Read one tensor as fp32; mode sm90 holds linears in 128x128 blocks, wo_a in bf16 elsewhere."""
    stored = reader.read(spec.name)
    if spec.scale_name is None:
        return stored.float()
    scale_bytes = reader.read(spec.scale_name)
    scales = _checked(scale_bytes, spec.scale_name)
    codes = stored.view(torch.uint8)
    if spec.storage == "engram":
        return dequantise_groups(codes, scales, ENGRAM_RULE)
    if spec.storage == "fp4":
        values = dequantise_expert(codes, scales)
    else:
        values = dequantise_blocks(codes, scales, CHECKPOINT_BLOCK)
    if mode == "sm90":
        return requantise_to_gemm_blocks(values)
    is_wo_a = spec.name.endswith("wo_a.weight")
    return values.bfloat16().float() if is_wo_a and mode == "trained" else values


def _checked(scales: torch.Tensor, name: str) -> torch.Tensor:
    """Give scale bytes back when each is a plausible scale."""
    if hasattr(torch, "float8_e8m0fnu"):
        return load_ue8m0_scales(scales, torch.uint8, name=name)
    values = decode_ue8m0(scales)  # torch before 2.7: without the type that load_ue8m0_scales names
    if not bool(((scales == 0) | (values.log2().abs() <= MAX_PLAUSIBLE_EXPONENT)).all()):
        raise CheckpointError(
            f"{name} holds a scale that is NaN or beyond 2^±{MAX_PLAUSIBLE_EXPONENT}",
            "block scales of the released checkpoint",
            "compare the shard's sha256 with the release and fetch it again",
        )
    return scales
