"""Top-k: time at the indexer's shapes, beside torch.topk on the same rows in the same run.

Rows are an indexer's scores: values around 20, most of them within one power of two. torch.topk gives
values and unordered indices; ours gives what the engine asks for, int32 indices in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from h20_ops import topk
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.peers import Peer, recorded
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import rotation_count, time_calls
from h20_ops.testing.topk_cases import make_values

SHAPES = (
    (4096, 32_768, 512),
    (8, 131_072, 512),
    (64, 32_768, 512),
    (64, 131_072, 512),
    (1, 1 << 20, 512),
    (4096, 16_384, 512),
    (4096, 16_384, 2048),
    (64, 16_384, 2048),
)
MOST_BYTES = 2 << 30  # of all sets of one shape


def measure(bench: BenchRun) -> None:
    """Measure every shape in fp32 and bf16."""
    for rows, columns, k in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            values = make_values("logits", rows, columns, "cuda").to(dtype)
            size = values.numel() * values.element_size()
            count = max(2, min(rotation_count(size), MOST_BYTES // size))
            sets = [values.roll(i, 0) for i in range(count)]
            theirs = time_calls([_torch(x, k) for x in sets], replays=10).median_us
            peers = [Peer(name="torch.topk", us=theirs, source="same_run")]
            if dtype == torch.float32:
                peers += recorded("topk", rows, columns, k)
            bench.row(
                shape={"rows": rows, "columns": columns, "k": k},
                ours=time_calls([_ours(x, k) for x in sets]),
                work=Work(flops=0.0, bytes_moved=float(size + rows * k * 4)),
                peers=peers,
                dtype="fp32" if dtype == torch.float32 else "bf16",
            )


def _ours(rows: torch.Tensor, k: int) -> Callable[[], object]:
    return lambda: topk(rows, k, sorted_index=True, indices_type=torch.int32, return_value=False)


def _torch(rows: torch.Tensor, k: int) -> Callable[[], object]:
    return lambda: torch.topk(rows, k)
