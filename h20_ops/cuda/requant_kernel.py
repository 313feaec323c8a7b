"""Compiled forms of the re-encoding kernels: argument structure and launch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from h20_ops.jit import CudaSource, load_kernel
from h20_ops.requant_loss import LOSS_SLOTS

if TYPE_CHECKING:
    import torch

BLOCK = 128
THREADS = 256
ALIGNMENT = 16
FP4_CTAS, FP8_CTAS = 6, 5  # thread blocks that share a multiprocessor, at least


def source(fp4_ctas: int = FP4_CTAS, fp8_ctas: int = FP8_CTAS) -> CudaSource:
    """The source with its constants."""
    defines = {"FP4_CTAS": fp4_ctas, "FP8_CTAS": fp8_ctas, "LOSS_SLOTS": LOSS_SLOTS}
    return CudaSource("requant", Path(__file__).parent / "requant.cu", defines)


class Params(ctypes.Structure):
    """Params of the source, field for field."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("loss", ctypes.c_void_p),
        ("columns", ctypes.c_int32),
    ]


def launch(
    kind: str,
    weight: torch.Tensor,
    scale: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    counters: torch.Tensor,
    *,
    chosen: CudaSource | None = None,
) -> None:
    """Run "fp4" or "fp8" on torch's current stream.

    Args:
        weight, scale: as reblock_fp4 and reblock_fp8 take them; leading dimensions count as rows.
        values, scales: what is written, contiguous.
        counters: LOSS_SLOTS times Loss of the source, zeroed.
    """
    import torch

    if values.numel() == 0:
        return
    weight, scale = _readable(weight), _readable(scale)
    columns = values.shape[-1]
    rows = values.numel() // columns
    params = Params(
        weight=weight.data_ptr(),
        scale=scale.data_ptr(),
        values=values.data_ptr(),
        scales=scales.data_ptr(),
        loss=counters.data_ptr(),
        columns=columns,
    )
    bytes_of_fp8 = kind == "fp8" and scale.element_size() == 1
    with torch.cuda.device(values.device):
        kernel = load_kernel(
            chosen or source(), f"requant_{kind}" + ("_bytes" if bytes_of_fp8 else "")
        )
        grid = (columns // BLOCK, rows // BLOCK)
        kernel.launch(grid=grid, block=(THREADS,), args=[params])


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where it is strided or does not start on 16 bytes."""
    import torch

    if tensor.is_contiguous():
        return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
    if tensor.element_size() == 1:  # 8-bit types are not all copied
        return tensor.view(torch.uint8).contiguous()
    return tensor.contiguous()
