"""Attention of the vision tower beside torch's own varlen attention, on the same batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention.varlen import varlen_attn

from h20_ops.testing.bench import BenchRun
from h20_ops.testing.peers import Peer
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import rotation_count, time_in_turns
from h20_ops.testing.vit_cases import DIM, HEADS, SPEED_LENGTHS, VitInputs, vit_case
from h20_ops.vit_attention import vit_attention


def measure(bench: BenchRun) -> None:
    """Measure each batch, ours and torch's in turns, on the same rotated inputs."""
    for name, lengths in SPEED_LENGTHS.items():
        rows = sum(lengths)
        moved = rows * HEADS * DIM * 2 * 4
        sets = [vit_case(lengths, seed=seed) for seed in range(rotation_count(moved, limit=8))]
        pairs_of_calls = [_ours(x) for x in sets], [_torch(x) for x in sets]
        ours, theirs = time_in_turns(*pairs_of_calls, replays=150)
        pairs = float(sum(length * length for length in lengths)) * HEADS
        bench.row(
            shape={"images": len(lengths), "rows": rows, "heads": HEADS, "dim": DIM},
            ours=ours,
            work=Work(flops=pairs * 4 * DIM, bytes_moved=moved, exps=pairs),
            peers=[
                Peer(name="torch varlen_attn", us=theirs.median_us, source="same_run"),
            ],
            kind=name,
        )


def _ours(x: VitInputs) -> Callable[[], torch.Tensor]:
    return lambda: vit_attention(x.q, x.k, x.v, **x.kwargs())[0]  # type: ignore[arg-type]


def _torch(x: VitInputs) -> Callable[[], object]:
    longest = max(x.lengths)
    return lambda: varlen_attn(x.q, x.k, x.v, x.borders, x.borders, longest, longest)
