"""Compiled forms of the paged indexer logits: argument structure, variants and launch.

Params mirrors that of mqa_logits_paged_plan.cuh field by field.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from h20_ops.jit import CudaSource, load_kernel

THREADS = 128
TILE = 128  # columns
HEADS = (32, 64)  # compiled; fewer heads are padded
BLOCKS = {32: 4, 64: 3}  # per multiprocessor, by heads
STAGES = 2  # tiles of keys on their way through shared memory
TABLE_BYTES = 20 * 8
SCRATCH_BYTES = 32
STAGE_BYTES = 4 * (2048 + 128)
LISTED_BYTES = 1024 * 16  # units of a segment


class Params(ctypes.Structure):
    _fields_ = [
        ("q", ctypes.c_void_p),
        ("q_sf", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("q_row_stride", ctypes.c_int64),
        ("q_head_stride", ctypes.c_int64),
        ("sf_row_stride", ctypes.c_int64),
        ("sf_head_stride", ctypes.c_int64),
        ("weight_row_stride", ctypes.c_int64),
        ("page_stride", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("candidate_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("max_length", ctypes.c_int32),
        ("num_candidates", ctypes.c_int32),
        ("candidate_block", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("fill", ctypes.c_int32),
    ]


def padded_heads(heads: int) -> int:
    """The compiled number of heads that holds so many."""
    return min(count for count in HEADS if count >= heads)


def shared_bytes(heads: int) -> int:
    """Shared memory of a block: queries, listed units, stages, weights, tables and scratch."""
    keys = LISTED_BYTES + STAGES * STAGE_BYTES
    return heads * 128 + keys + heads * 4 + TABLE_BYTES + SCRATCH_BYTES


@dataclass(frozen=True)
class Variant:
    """One compiled form.

    heads: 32 or 64. aligned: pages hold whole eights of keys and begin at multiples of 16 bytes.
    fp32: logits are, instead of bf16.
    """

    heads: int
    aligned: bool
    fp32: bool

    @property
    def shared_bytes(self) -> int:
        return shared_bytes(self.heads)


def source(variant: Variant) -> CudaSource:
    """The kernel's source for one variant."""
    path = Path(__file__).parent / "mqa_logits_paged.cu"
    defines = {
        "HEADS": variant.heads,
        "ALIGNED": int(variant.aligned),
        "OUT_FP32": int(variant.fp32),
        "BLOCKS": BLOCKS[variant.heads],
        "STAGES": STAGES,
        # Checked against the source's own numbers when it compiles.
        "EXPECTED_SHARED_BYTES": variant.shared_bytes,
        "EXPECTED_PARAMS_BYTES": ctypes.sizeof(Params),
    }
    return CudaSource("mqa_logits_paged", path, defines)


def grid_size(rows: int, columns: int, heads: int, num_sms: int) -> int:
    """Blocks that fill the card, or one per tile where there are fewer tiles."""
    return max(1, min(num_sms * BLOCKS[heads], rows * -(-columns // TILE)))


def launch(params: Params, variant: Variant, num_sms: int) -> None:
    """Run the kernel on torch's current stream."""
    kernel = load_kernel(source(variant), "mqa_logits_paged", shared_bytes=variant.shared_bytes)
    kernel.launch(
        grid=(grid_size(params.rows, params.columns, variant.heads, num_sms),),
        block=(THREADS,),
        args=[params],
        programmatic=True,
    )
