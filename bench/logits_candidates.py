"""Indexer logits against listed blocks of keys, beside the dense logits of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from h20_ops import mqa_logits_paged
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.mqa_logits_paged_cases import speed_inputs
from h20_ops.testing.peers import Peer
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import rotation_count, time_calls

RECORD = 68
ALU_OPS = 1.1
ROWS, CONTEXT, HEADS = 64, 131_072, 32
BLOCKS = 2048
ENGINE_STRIDE = 114_048


def measure(bench: BenchRun) -> None:
    """Measure 2048 blocks of 8 and of 16 in pages, dense and with the engine's stride."""
    dense = time_calls([_call(given) for given in _sets(0, 8, 0)])
    for block, stride in ((8, 0), (8, ENGINE_STRIDE), (16, 0)):
        ours = time_calls([_call(given) for given in _sets(BLOCKS, block, stride)])
        torch.cuda.empty_cache()
        columns = BLOCKS * block
        pairs = float(ROWS) * columns
        bench.row(
            shape={"rows": ROWS, "context": CONTEXT, "candidates": columns, "heads": HEADS},
            ours=ours,
            work=Work(
                flops=pairs * HEADS * 2 * 128,
                bytes_moved=pairs * (RECORD + 2) + ROWS * BLOCKS * 8,
                alu_ops=pairs * 128 * ALU_OPS,
                mma_speed=2.0,
            ),
            peers=[Peer(name="our dense logits", us=dense.median_us, source="same_run")],
            kind="paged",
            record=f"68, blocks of {block}" + (f", stride {stride}" if stride else ""),
        )


def _sets(candidates: int, block: int, stride: int) -> list[dict[str, Any]]:
    """Enough sets of lists, or of pages for the dense form, that L2 holds no call's keys."""
    read = ROWS * (candidates * block or CONTEXT) * RECORD
    return speed_inputs(
        batch=ROWS,
        context=CONTEXT,
        heads=HEADS,
        sets=rotation_count(read),
        page_size=128 if stride else 64,
        page_stride=stride,
        candidates=candidates,
        block=block,
        share_pages=candidates > 0,
    )


def _call(given: dict[str, Any]) -> Callable[[], torch.Tensor]:
    return lambda: mqa_logits_paged(**given)
