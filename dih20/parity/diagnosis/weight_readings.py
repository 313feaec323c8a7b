"""Wrong ways to read a stored weight's bytes: what each would have made of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from dih20.parity.diagnosis.inputs import Inputs
from h20_ops.formats import decode_e2m1, decode_e4m3, decode_ue8m0, quantise_groups, unpack_nibbles
from v41.checkpoint import CheckpointReader
from v41.checkpoint.blocks import CHECKPOINT_BLOCK, ENGRAM_RULE, quantise_blocks, quantise_expert
from v41.tensors import TensorSpec, text_tensors

Reading = tuple[str, str, Callable[[], torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A weight as bytes: codes uint8 and scale bytes uint8, as v41.tensors describes them."""

    storage: Literal["fp8", "fp4", "engram"]
    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """Give the codes' values (N, K), not scaled."""
        if self.storage == "fp4":
            return decode_e2m1(unpack_nibbles(self.codes))
        return decode_e4m3(self.codes)

    def scaled(self, values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Multiply values (N, K) by fp32 scales of this storage's blocks, spread over them."""
        rows = CHECKPOINT_BLOCK if self.storage == "fp8" else 1
        columns = -(-values.shape[1] // scales.shape[1])
        spread = scales.repeat_interleave(rows, dim=0).repeat_interleave(columns, dim=1)
        return values * spread[: values.shape[0], : values.shape[1]]


def wrong_readings(inputs: Inputs, name: str) -> Iterator[Reading]:
    """Give (cause, detail, values) of every known wrong reading of one weight.

    Without a checkpoint the bytes are made again from the clean values; a group whose largest code
    is small may then get another scale than it was stored with, and explains a little less.
    """
    spec = {spec.name: spec for spec in text_tensors(inputs.config)}[name]
    if spec.storage in ("bf16", "fp32"):
        return
    stored = _stored(inputs, spec)
    short = name.removesuffix(".weight")
    if spec.storage == "fp4":
        yield (
            "nibble-order",
            f"{short}: high nibble first",
            lambda: _swap_nibbles(stored),
        )
        yield (
            "expert-scale-transposed",
            f"{short}: scale bytes in transposed order",
            lambda: stored.scaled(stored.values, _transposed(decode_ue8m0(stored.scales))),
        )
    yield (
        "e8m0-as-number",
        f"{short}: scale bytes as numbers",
        lambda: stored.scaled(stored.values, stored.scales.float()),
    )
    if stored.scales.shape[1] % 4 == 0:
        yield (
            "engram-scale-view" if spec.storage == "engram" else "ue8m0-packed-as-fp32",
            f"{short}: four scale bytes as one fp32",
            lambda: stored.scaled(stored.values, stored.scales.contiguous().view(torch.float32)),
        )


def _swap_nibbles(stored: Stored) -> torch.Tensor:
    swapped = decode_e2m1(unpack_nibbles(stored.codes)).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return stored.scaled(swapped, decode_ue8m0(stored.scales))


def _transposed(scales: torch.Tensor) -> torch.Tensor:
    """Read a buffer written as (N, G) as if it were (G, N), and turn that."""
    return scales.flatten().view(scales.shape[1], scales.shape[0]).T


def _stored(inputs: Inputs, spec: TensorSpec) -> Stored:
    assert spec.storage in ("fp8", "fp4", "engram"), spec
    oracle = inputs.evidence.oracle
    checkpoint = getattr(oracle, "checkpoint", None)
    if checkpoint is not None and spec.scale_name is not None:
        reader = CheckpointReader(checkpoint)
        codes = reader.read(spec.name).view(torch.uint8)
        scales = reader.read(spec.scale_name).view(torch.uint8)
    else:
        weight = inputs.weight(spec.name)
        if spec.storage == "fp8":
            codes, scales = quantise_blocks(weight, CHECKPOINT_BLOCK)
        elif spec.storage == "fp4":
            codes, scales = quantise_expert(weight)
        else:
            codes, scales = quantise_groups(weight, ENGRAM_RULE)
    return Stored(storage=spec.storage, codes=codes, scales=scales)
