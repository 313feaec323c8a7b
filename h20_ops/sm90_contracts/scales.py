"""The scale of an FP8 operand: fp32, one per 128, and never packed exponents.

Four ue8m0 exponents in an int32, one per 32 columns, take exactly the shape and the bytes of fp32
scales, one per 128 columns. Whoever reads the first as the second gets no error: four bytes 0x77
mean 2^-8 each and read as 5.0e33.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.sm90_contracts.refusal import refuse, want_shape

if TYPE_CHECKING:
    import torch

BLOCK = 128


def blocks(size: int) -> int:
    """Give the number of 128-wide blocks that cover a size."""
    return -(-size // BLOCK)


def check_gemm_scale(name: str, scale: torch.Tensor, *, rows: int, columns: int) -> None:
    """Refuse a weight scale that DeepGEMM's SM90 kernels would not read as meant.

    Args:
        name: what the error calls the tensor.
        scale: fp32, (ceil(rows / 128), ceil(columns / 128)), with leading dimensions for groups.
        rows, columns: those of the weight.
    Raises:
        UnsupportedError: another dtype, another block size, or a layout that is not contiguous.
    """
    want_fp32("check_gemm_scale", name, scale)
    shape = (*scale.shape[:-2], blocks(rows), blocks(columns))
    want_shape("check_gemm_scale", name, scale, shape)
    want_contiguous("check_gemm_scale", name, scale)


def want_fp32(call: str, argument: str, scale: torch.Tensor) -> None:
    import torch

    if scale.dtype == torch.float32:
        return
    packed = scale.dtype in (torch.int32, torch.uint8, torch.float8_e8m0fnu)
    refuse(
        call,
        f"{argument}.dtype",
        f"{scale.dtype}, packed ue8m0 exponents" if packed else f"{scale.dtype}",
        "torch.float32: exponents have the shape and size of fp32 scales and would be read as numbers",
        "cast activations per 128 with fp32 scales; requantise weights with h20_ops.requant",
    )


def want_contiguous(call: str, argument: str, scale: torch.Tensor) -> None:
    if not scale.is_contiguous():
        refuse(
            call,
            f"{argument}.stride()",
            scale.stride(),
            f"contiguous {tuple(scale.shape)}",
            f"call {argument}.contiguous() once, where the weight is loaded",
        )


def want_activation_scale(call: str, argument: str, scale: torch.Tensor, rows: int, k: int) -> None:
    """Refuse a scale of activations other than fp32 (rows, ceil(k / 128)), columns outermost.

    Column-major with a column stride that is a multiple of 4 is what TMA reads; a contiguous
    row-major one is taken too, DeepGEMM copies it.
    """
    want_fp32(call, argument, scale)
    want_shape(call, argument, scale, (rows, blocks(k)))
    row, column = scale.stride()
    is_row_major = scale.is_contiguous()
    is_column_major = row == 1 and column >= rows and column % 4 == 0
    if scale.numel() and not (is_row_major or is_column_major):
        refuse(
            call,
            f"{argument}.stride()",
            scale.stride(),
            f"(1, {-(-rows // 4) * 4}), rows padded to a multiple of 4, or row-major contiguous",
            "cast with use_tma_aligned_col_major_sf=True",
        )
