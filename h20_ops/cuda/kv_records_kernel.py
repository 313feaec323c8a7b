"""Compiled forms of the record kernels: argument structure and launch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from h20_ops.errors import DeviceError, UnsupportedError
from h20_ops.jit import CudaSource, load_kernel

if TYPE_CHECKING:
    import torch

    from h20_ops.kv_cache import KvLayout

SOURCE = CudaSource("kv_records", Path(__file__).parent / "kv_records.cu")
ROWS_PER_BLOCK = 8
THREADS = 256
SUFFIXES = {"v41_fp8": "fp8", "v41_fp4": "fp4"}


class Params(ctypes.Structure):
    """Params of the source, field for field."""

    _fields_ = [
        ("cache", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("page_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("page_size", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
    ]


def launch(
    verb: str, cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, layout: KvLayout
) -> None:
    """Run "store" or "load" over bf16 rows (num_rows, 512) on torch's current stream."""
    import torch

    if layout.name not in SUFFIXES:
        raise UnsupportedError(
            f"layout {layout}",
            f"one of {', '.join(SUFFIXES)}",
            "call the twin of the same name in h20_ops.torch_ref for other records",
        )
    if not cache.is_cuda:
        raise DeviceError(
            f"tensors on {cache.device}",
            "tensors on an SM90 device (H20, H100, H200)",
            "move them there, or call the twin of the same name in h20_ops.torch_ref",
        )
    _check_aligned(cache, cache.stride(0), cache.shape[0], "k_cache", "bytes")
    _check_aligned(rows, rows.stride(0) * 2, rows.shape[0], "rows", "bytes")
    assert slots.is_contiguous(), f"slots: contiguous expected, got strides {slots.stride()}"
    if rows.shape[0] == 0:
        return
    params = Params(
        cache=cache.data_ptr(),
        slots=slots.data_ptr(),
        rows=rows.data_ptr(),
        page_stride=cache.stride(0),
        row_stride=rows.stride(0),
        page_size=cache.shape[1],
        num_rows=rows.shape[0],
    )
    with torch.cuda.device(cache.device):
        kernel = load_kernel(SOURCE, f"{verb}_{SUFFIXES[layout.name]}")
        blocks = -(-rows.shape[0] // ROWS_PER_BLOCK)
        kernel.launch(grid=(blocks,), block=(THREADS,), args=[params])


def _check_aligned(tensor: torch.Tensor, stride: int, count: int, name: str, unit: str) -> None:
    fits = tensor.data_ptr() % 16 == 0 and (count <= 1 or stride % 16 == 0)
    assert fits, (
        f"{name}: base and stride(0) must be multiples of 16 {unit}, got base "
        f"{tensor.data_ptr():#x}, stride(0) {stride} {unit}"
    )
