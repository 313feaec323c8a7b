"""Numbers of other kernels on the H200, recorded once, for rows whose peer cannot be loaded.

Medians measured on that card with the kernels' own calls. A peer that runs beside ours in the same
process is better: benchmarks then write its row with source "same_run".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PeerSource = Literal["same_run", "recorded"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another kernel's time for a row's shape."""

    name: str
    us: float
    source: PeerSource


_PREFILL_ROWS, _PREFILL_KEYS, _PREFILL_HEADS = 4096, 8192, 64
_PREFILL_TFLOPS = {
    "FlashMLA SM90": {512: 498.0, 640: 518.0, 1024: 581.0, 2048: 588.0},
    "TileOps 0.1.0": {512: 462.0, 640: 508.0, 1024: 564.0, 2048: 584.0},
}
# (batch, topk, extra_topk) -> microseconds, 64 heads
_DECODE_US: dict[str, dict[tuple[int, int, int], float]] = {
    "FlashMLA SM90, 584-byte records": {
        (1, 1024, 0): 19.0,
        (8, 1024, 0): 19.7,
        (64, 1024, 0): 59.9,
        (128, 1024, 0): 68.5,
        (1, 128, 512): 16.1,
        (8, 128, 512): 20.1,
        (32, 128, 512): 27.8,
        (64, 128, 512): 47.4,
        (128, 128, 512): 48.4,
        (256, 128, 512): 89.5,
        (512, 128, 512): 171.0,
    },
    "TileOps 0.1.0, 656-byte records": {
        (8, 1024, 0): 25.5,
        (64, 1024, 0): 51.7,
        (128, 1024, 0): 71.1,
        # 640 keys of one scope: the same number of keys as 128 + 512
        (64, 128, 512): 41.8,
        (256, 128, 512): 92.8,
    },
}
# op -> values of its SHAPE_KEYS -> name and microseconds
_OTHERS_US: dict[str, dict[tuple[int, ...], tuple[str, float]]] = {
    "logits_prefill": {(4096, 32768, 32): ("DeepGEMM 2.8.2, FP8", 1194.0)},
    "logits_paged": {
        (8, 131_072, 32): ("DeepGEMM 2.8.2, FP8", 56.0),
        (64, 32_768, 32): ("DeepGEMM 2.8.2, FP8", 104.8),
        (64, 131_072, 32): ("DeepGEMM 2.8.2, FP8", 316.4),
    },
    "topk": {
        (4096, 32_768, 512): ("torch.topk", 1777.0),
        (8, 131_072, 512): ("torch.topk", 177.5),
        (64, 32_768, 512): ("torch.topk", 177.9),
        (64, 131_072, 512): ("torch.topk", 211.3),
    },
}


def recorded(op: str, *shape: int) -> list[Peer]:
    """Return the recorded peer of a row of logits or top-k, by its SHAPE_KEYS in order."""
    found = _OTHERS_US[op].get(shape)
    return [Peer(name=found[0], us=found[1], source="recorded")] if found else []


def recorded_prefill(*, s_q: int, topk: int, heads: int, s_kv: int = _PREFILL_KEYS) -> list[Peer]:
    """Return recorded peers for a prefill row; they exist for s_q 4096, s_kv 8192, 64 heads."""
    if (s_q, s_kv, heads) != (_PREFILL_ROWS, _PREFILL_KEYS, _PREFILL_HEADS):
        return []
    flops = float(s_q) * heads * topk * 4 * 512
    return [
        Peer(name=name, us=flops / table[topk] / 1e6, source="recorded")
        for name, table in _PREFILL_TFLOPS.items()
        if topk in table
    ]


def recorded_decode(*, batch: int, topk: int, extra_topk: int, heads: int) -> list[Peer]:
    """Return recorded peers for a decode row of one query per request; 64 heads only."""
    key = (batch, topk, extra_topk)
    return [
        Peer(name=name, us=table[key], source="recorded")
        for name, table in _DECODE_US.items()
        if heads == 64 and key in table
    ]
