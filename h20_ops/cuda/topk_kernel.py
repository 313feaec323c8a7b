"""Compiled forms of top-k: argument structure, sizes, how a row is cut, and launch."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path

from h20_ops.jit import CudaSource, load_kernel

LIST_BYTES = 2 * 128 * 8
SMALL_BYTES = 8 + 256 + 12 * 4  # of single words in shared memory
MAX_BLOCKS = 8  # of a cluster that every launch may ask for
LEAST_SLICE = 16_384  # columns a block should have to be worth the exchange with others
MANY_ROWS = 2  # for each multiprocessor
NARROW_COLUMNS = 49_152  # of wider rows a narrow form's sample is too small a part
NAN_BF16 = 0x7FC0


class Params(ctypes.Structure):
    """Params of topk_layout.cuh, field for field."""

    _fields_ = [
        ("input", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("nan_rows", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("index_stride", ctypes.c_int64),
        ("index_fill", ctypes.c_int64),
        ("value_fill", ctypes.c_uint32),
        ("columns", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("column_bits", ctypes.c_int32),
        ("wide", ctypes.c_int32),
        ("sorted", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Form:
    """Constants of one compiled kernel."""

    threads: int
    stages: int  # of the ring, of stage_bytes each
    stage_bytes: int
    candidates: int
    blocks_per_sm: int  # that registers leave room for; shared memory may not
    histogram_bits: int = 11

    @property
    def shared_bytes(self) -> int:
        """What Shared of topk_layout.cuh takes."""
        ring = self.stages * (self.stage_bytes + 8)
        needed = (
            ring
            + 16 * self.threads
            + 8 * self.candidates
            + (4 << self.histogram_bits)
            + LIST_BYTES
            + SMALL_BYTES
        )
        return -(-needed // 128) * 128


# By the largest k they serve. WIDE for few rows, whose blocks have a multiprocessor to themselves;
# NARROW for many, of which one waits while others compute.
WIDE = {
    512: Form(512, 2, 32768, candidates=2048, blocks_per_sm=2),
    1024: Form(512, 2, 16384, candidates=4096, blocks_per_sm=2),
    2048: Form(512, 2, 16384, candidates=6144, blocks_per_sm=2),
    4096: Form(1024, 2, 32768, candidates=12288, blocks_per_sm=1),
}
NARROW = {
    512: Form(256, 2, 16384, candidates=1536, blocks_per_sm=4, histogram_bits=10),
    1024: Form(256, 2, 16384, candidates=3072, blocks_per_sm=4, histogram_bits=10),
    2048: Form(256, 2, 16384, candidates=4096, blocks_per_sm=4, histogram_bits=10),
    4096: WIDE[4096],
}


def plan(rows: int, columns: int, k: int, num_sms: int) -> tuple[Form, int]:
    """Which form serves a call, and how many blocks share a row, from what the host knows."""
    many = rows >= MANY_ROWS * num_sms and columns <= NARROW_COLUMNS
    forms = NARROW if many else WIDE
    blocks = 1
    while (
        blocks < MAX_BLOCKS and rows * blocks * 2 <= num_sms and columns >= LEAST_SLICE * blocks * 2
    ):
        blocks *= 2
    return next(form for most, form in forms.items() if k <= most), blocks


def source(form: Form, *, is_bf16: bool) -> CudaSource:
    """The kernel's source for one form and element type."""
    defines = {
        "IS_BF16": int(is_bf16),
        "BLOCK_THREADS": form.threads,
        "RING_STAGES": form.stages,
        "RING_STAGE_BYTES": form.stage_bytes,
        "CANDIDATES": form.candidates,
        "BLOCKS_PER_SM": form.blocks_per_sm,
        "HISTOGRAM_BITS": form.histogram_bits,
        # Checked against the source's own numbers when it compiles.
        "EXPECTED_SHARED_BYTES": form.shared_bytes,
        "EXPECTED_PARAMS_BYTES": ctypes.sizeof(Params),
    }
    return CudaSource("topk", Path(__file__).parent / "topk.cu", defines)


def column_bits(columns: int) -> int:
    """The least b with columns <= 2**b, at least 1."""
    return max(1, (columns - 1).bit_length())


def value_bits(value: float, *, is_bf16: bool) -> int:
    """The bits of a value rounded to fp32, then to bf16 if asked: to nearest, ties to even."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    bits = int(struct.unpack("<I", packed)[0])
    if not is_bf16:
        return bits
    if value != value:
        return NAN_BF16
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def launch(params: Params, rows: int, form: Form, *, is_bf16: bool) -> None:
    """Run the kernel on torch's current stream, params.blocks blocks for each row."""
    kernel = load_kernel(source(form, is_bf16=is_bf16), "topk", shared_bytes=form.shared_bytes)
    kernel.launch(
        grid=(rows * params.blocks,),
        block=(form.threads,),
        args=[params],
        cluster=(params.blocks,) if params.blocks > 1 else None,
        programmatic=True,
    )
