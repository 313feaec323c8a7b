"""FP4 experts to FP8: time at the experts' shapes, as a share of what a copy reaches."""

from __future__ import annotations

from functools import partial

from h20_ops.reblock import reblock_fp4
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.requant_cases import expert_case
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import time_calls

SHAPES = [(32, 4608, 5120), (32, 5120, 2304), (1, 4608, 5120)]
SPREAD = 5


def measure(bench: BenchRun) -> None:
    """Measure all experts of a GPU in one call, both matrices, and one expert in a call."""
    for experts, rows, columns in SHAPES:
        values = experts * rows * columns
        moved = values * (0.5 + 1 / 32 + 1) + values / 128**2 * 4
        sets = [
            expert_case((experts, rows, columns), SPREAD) for _ in range(2 if experts > 1 else 8)
        ]
        ours = time_calls([partial(reblock_fp4, *pair) for pair in sets])
        del sets
        bench.row(
            shape={"experts": experts, "rows": rows, "columns": columns},
            ours=ours,
            work=Work(flops=0, bytes_moved=moved),
            copy_share=round(moved / ours.median_us / 1e3 / bench.copy_gbps, 3),
        )
