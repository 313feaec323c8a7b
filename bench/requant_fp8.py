"""Dense FP8 weights to 128x128 scales: time at the layers' shapes, as a share of a copy's."""

from __future__ import annotations

from functools import partial

from h20_ops.formats import decode_ue8m0
from h20_ops.reblock import reblock_fp8
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.requant_cases import dense_case
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import time_calls

SHAPES = [(36_864, 1024), (5120, 8192), (8192, 5120), (147_456, 5120)]
SPREAD = 3


def measure(bench: BenchRun) -> None:
    """Measure layers' weights, and one large enough that launching does not count."""
    for rows, columns in SHAPES:
        values = rows * columns
        moved = values * 2 + values / 32**2 * 4 + values / 128**2 * 4
        count = max(2, min(8, 400_000_000 // values))
        sets = [dense_case((rows, columns), SPREAD) for _ in range(count)]
        pairs = [(codes, decode_ue8m0(exponents)) for codes, exponents in sets]
        ours = time_calls([partial(reblock_fp8, *pair) for pair in pairs])
        del sets, pairs
        bench.row(
            shape={"rows": rows, "columns": columns},
            ours=ours,
            work=Work(flops=0, bytes_moved=moved),
            copy_share=round(moved / ours.median_us / 1e3 / bench.copy_gbps, 3),
        )
