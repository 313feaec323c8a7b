"""Compiled forms of the paged decode: argument structures, split plan and launch.

The structures mirror those of sparse_mla_decode_plan.cuh field by field.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

from h20_ops.jit import CudaSource, load_kernel

HEADS = 64  # per piece of work
BLOCK_KEYS = 64
THREADS = 512
COMBINE_THREADS = 128
SHARED_BYTES = 231_000
LOG2E = math.log2(math.e)
EXTRA_KINDS: dict[str | None, int] = {None: 0, "v41_fp8": 1, "v41_fp4": 2}
MAX_BLOCKS = 64  # of one piece
MAX_SPLITS = 32
# What choose_splits weighs, in microseconds, fitted to bench/mla_decode.py's shapes on an H200.
PIECE_US = 8.0  # launch, first records, output
BLOCK_US = 2.2
PARTIAL_US = 0.075  # a piece's 128 KiB written and read back while other pieces do the same


class Scope(ctypes.Structure):
    _fields_ = [
        ("cache", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("page_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("query_stride", ctypes.c_int64),
        ("page_size", ctypes.c_uint32),
        ("page_multiplier", ctypes.c_uint32),
        ("page_shift", ctypes.c_uint32),
        ("topk", ctypes.c_int32),
    ]


class Params(ctypes.Structure):
    _fields_ = [
        ("main", Scope),
        ("extra", Scope),
        ("q", ctypes.c_void_p),
        ("q_strides", ctypes.c_int64 * 3),
        ("sink", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("partial_out", ctypes.c_void_p),
        ("partial_stats", ctypes.c_void_p),
        ("queries", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("scale_log2", ctypes.c_float),
    ]


def source(extra_kind: int) -> CudaSource:
    """The kernel's source for one kind of extra scope (EXTRA_KINDS)."""
    path = Path(__file__).parent / "sparse_mla_decode.cu"
    defines = {
        "EXTRA_KIND": extra_kind,
        # Checked against the source's own numbers when it compiles.
        "EXPECTED_SHARED_BYTES": SHARED_BYTES,
        "EXPECTED_PARAMS_BYTES": ctypes.sizeof(Params),
    }
    return CudaSource("sparse_mla_decode", path, defines)


def divider(divisor: int) -> tuple[int, int]:
    """Return (multiplier, shift) with n // divisor == n * multiplier >> (31 + shift), n < 2**31."""
    assert 0 < divisor < 1 << 31, f"page size {divisor}"
    shift = (divisor - 1).bit_length()
    return -(-(1 << (31 + shift)) // divisor), shift


def choose_splits(
    rows: int, topk: int, extra_topk: int, num_sms: int, batch_invariant: bool
) -> int:
    """Into how many pieces each row (of 64 heads) is cut, from sizes known on the host.

    Batch-invariant: a function of the widths alone. Otherwise the number that a simple cost model
    finds fastest: rounds of pieces over the multiprocessors, plus the cost of adding them up.
    """
    blocks = -(-topk // BLOCK_KEYS) + -(-extra_topk // BLOCK_KEYS)
    least = -(-blocks // MAX_BLOCKS)
    if batch_invariant:
        return max(least, min(MAX_SPLITS, -(-blocks // 16)))

    def cost(splits: int) -> float:
        rounds = -(-rows * splits // num_sms)
        busy = rounds * (PIECE_US + BLOCK_US * -(-blocks // splits))
        return busy + (PARTIAL_US * rows * splits if splits > 1 else 0.0)

    return min(range(least, max(least, min(MAX_SPLITS, blocks)) + 1), key=cost)


def launch(params: Params, rows: int, extra_kind: int) -> None:
    """Run the decode kernel, and the one that adds up pieces if rows are split."""
    chosen = source(extra_kind)
    main = load_kernel(chosen, "sparse_mla_decode", shared_bytes=SHARED_BYTES)
    main.launch(
        grid=(rows, params.splits, params.heads // HEADS),
        block=(THREADS,),
        args=[params],
        programmatic=True,
    )
    if params.splits > 1:
        combine = load_kernel(chosen, "sparse_mla_decode_combine")
        combine.launch(
            grid=(rows, params.heads),
            block=(COMBINE_THREADS,),
            args=[params],
            programmatic=True,
        )
