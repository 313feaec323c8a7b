"""Faults in reading a checkpoint's bytes: scales, nibbles, transpositions, swapped projections."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch

from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import BOTH, Fault, Injector
from v41.model import Reference
from v41.tap import Tap

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Gives the wrong fp32 values of a weight from its stored bytes: codes and scale bytes, uint8.
Misreading = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_LINEARS = {
    "q_low": "attn.wq_a",
    "q": "attn.wq_b",
    "window_kv": "attn.wkv",
    "output": "attn.wo_a",
}


def _e2m1_values(packed: torch.Tensor, *, high_first: bool = False) -> torch.Tensor:
    low, high = (packed & 0x0F).long(), (packed >> 4).long()
    codes = torch.stack((high, low) if high_first else (low, high), dim=-1).flatten(-2)
    return _E2M1[codes & 7] * torch.where(codes > 7, -1.0, 1.0)


def _e4m3_values(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.float8_e4m3fn).float()


def _powers(scales: torch.Tensor) -> torch.Tensor:
    return torch.exp2(scales.double() - 127.0).float()


def _per_32(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Scale groups of channels of every row."""
    return values * scales.repeat_interleave(values.shape[1] // scales.shape[1], dim=1)


def _per_block(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Scale 32 rows at a time, and groups of channels."""
    rows = scales.repeat_interleave(32, dim=0)[: values.shape[0]]
    return _per_32(values, rows)


def _as_fp32(scales: torch.Tensor) -> torch.Tensor:
    return scales.contiguous().view(torch.int32).view(torch.float32)


def _misread_linear(cause: str, detail: str, misread: Misreading) -> Injector:
    """Misread one FP8 linear of a random layer."""

    def inject(base: Base, random: Random) -> Fault:
        layer = random.randrange(base.oracle.config.num_hidden_layers)
        leaf = random.choice(sorted(_LINEARS))
        name = f"layers.{layer}.{_LINEARS[leaf]}"
        return Fault(
            cause=cause, site=f"layers.{layer}.attn.{leaf}", phases=BOTH,
            detail=f"{detail}: {_LINEARS[leaf]}",
            build=with_weights(base, {f"{name}.weight": _misreading(base, name, misread)}),
        )  # fmt: skip

    return inject


def _misread_experts(cause: str, detail: str, misread: Misreading) -> Injector:
    """Misread all three projections of every routed expert of a random layer."""

    def inject(base: Base, random: Random) -> Fault:
        layer = random.randrange(base.oracle.config.num_hidden_layers)
        experts = range(base.oracle.config.n_routed_experts)
        names = [f"layers.{layer}.ffn.experts.{e}.{w}" for e in experts for w in ("w1", "w2", "w3")]
        return Fault(
            cause=cause, site=f"layers.{layer}.ffn.routed", phases=BOTH, detail=detail,
            build=with_weights(
                base, {f"{name}.weight": _misreading(base, name, misread) for name in names}
            ),
        )  # fmt: skip

    return inject


def _misread_table(cause: str, detail: str, misread: Misreading) -> Injector:
    """Misread an Engram table."""

    def inject(base: Base, random: Random) -> Fault:
        layer = random.choice(base.oracle.config.engram_layer_ids)
        name = f"layers.{layer}.engram.embed"
        return Fault(
            cause=cause, site=f"layers.{layer}.engram.found", phases=BOTH, detail=detail,
            build=with_weights(base, {f"{name}.weight": _misreading(base, name, misread)}),
        )  # fmt: skip

    return inject


def _swapped_projections(experts: str) -> Injector:
    """Exchange w1 and w3 of a random layer's routed or shared experts."""

    def inject(base: Base, random: Random) -> Fault:
        config, clean = base.oracle.config, base.oracle.weights
        layer = random.randrange(config.num_hidden_layers)
        routed = [f"experts.{index}" for index in range(config.n_routed_experts)]
        wrong: dict[str, Callable[[], torch.Tensor]] = {}
        for expert in routed if experts == "routed" else ["shared_experts"]:
            first, third = (f"layers.{layer}.ffn.{expert}.{n}.weight" for n in ("w1", "w3"))
            wrong |= {first: _kept(clean[third]), third: _kept(clean[first])}
        return Fault(
            cause="w1-w3-swapped", site=f"layers.{layer}.ffn.{experts}", phases=BOTH,
            detail=f"w1 and w3 of the {experts} experts", build=with_weights(base, wrong),
        )  # fmt: skip

    return inject


def _kept(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor


def _misreading(base: Base, name: str, misread: Misreading) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        checkpoint = base.checkpoint
        codes = checkpoint.read(f"{name}.weight").view(torch.uint8)
        return misread(codes, checkpoint.read(f"{name}.scale").view(torch.uint8))

    return read


def with_weights(
    base: Base, wrong: dict[str, Callable[[], torch.Tensor]]
) -> Callable[[Tap], Reference]:
    """Give a builder of the model with some weights replaced."""

    def build(tap: Tap) -> Reference:
        model = base.reference(tap)
        weights = {**model.weights, **{name: read() for name, read in wrong.items()}}
        return type(model)(
            model.config, weights, numerics=model.numerics,
            compressed_ids=base.oracle.compressed_ids, tap=tap,
        )  # fmt: skip

    return build


LINEAR_E8M0_NUMBER = _misread_linear(
    "e8m0-as-number", "scale bytes as numbers",
    lambda codes, scales: _per_block(_e4m3_values(codes), scales.float()),
)  # fmt: skip
LINEAR_PACKED_FP32 = _misread_linear(
    "ue8m0-packed-as-fp32", "four scale bytes as one fp32",
    lambda codes, scales: _per_block(_e4m3_values(codes), _as_fp32(scales)),
)  # fmt: skip
EXPERT_E8M0_NUMBER = _misread_experts(
    "e8m0-as-number", "scale bytes of the experts as numbers",
    lambda codes, scales: _per_32(_e2m1_values(codes), scales.float()),
)  # fmt: skip
EXPERT_PACKED_FP32 = _misread_experts(
    "ue8m0-packed-as-fp32", "four scale bytes of the experts as one fp32",
    lambda codes, scales: _per_32(_e2m1_values(codes), _as_fp32(scales)),
)  # fmt: skip
EXPERT_NIBBLES = _misread_experts(
    "nibble-order", "high nibble first",
    lambda codes, scales: _per_32(_e2m1_values(codes, high_first=True), _powers(scales)),
)  # fmt: skip
EXPERT_TRANSPOSED = _misread_experts(
    "expert-scale-transposed", "scale bytes in the order of (K/32, N)",
    lambda codes, scales: _per_32(
        _e2m1_values(codes), _powers(scales).reshape(scales.shape[::-1]).t()
    ),
)  # fmt: skip
ENGRAM_VIEW = _misread_table(
    "engram-scale-view", "four scale bytes of a row as one fp32",
    lambda codes, scales: _per_32(_e4m3_values(codes), _as_fp32(scales)),
)  # fmt: skip
ENGRAM_E8M0_NUMBER = _misread_table(
    "e8m0-as-number", "scale bytes of the table as numbers",
    lambda codes, scales: _per_32(_e4m3_values(codes), scales.float()),
)  # fmt: skip
ROUTED_SWAPPED = _swapped_projections("routed")
SHARED_SWAPPED = _swapped_projections("shared")
