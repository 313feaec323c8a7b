"""Argument checks of top-k; shared by kernel and twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_K = 4096
MAX_COLUMNS = 1 << 23


def check_topk(
    input: torch.Tensor,
    k: int,
    end: torch.Tensor | None,
    sorted: bool,
    sorted_index: bool,
    indices_type: torch.dtype,
    output_idx: torch.Tensor | None,
    output_idx_offset: torch.Tensor | None,
    return_value: bool,
    nan_rows: torch.Tensor | None,
) -> tuple[int, int]:
    """Assert the contract and return rows, columns."""
    import torch

    assert input.dtype in (torch.float32, torch.bfloat16), (
        f"input: {input.dtype}, want fp32 or bf16"
    )
    assert input.dim() == 2, f"input: {tuple(input.shape)}, want (rows, columns)"
    rows, columns = input.shape
    assert columns <= MAX_COLUMNS, f"input: {columns} columns, want at most {MAX_COLUMNS}"
    assert columns <= 1 or input.stride(1) == 1, f"input: strides {input.stride()}, last not 1"
    assert 1 <= k <= MAX_K, f"k: {k}, want 1..{MAX_K}"
    assert indices_type in (torch.int32, torch.int64), f"indices_type: {indices_type}"
    assert not (sorted and sorted_index), "sorted and sorted_index exclude each other"
    assert return_value or not sorted, "sorted needs return_value"
    for name, tensor in (("end", end), ("output_idx_offset", output_idx_offset)):
        if tensor is not None:
            assert tensor.dtype == torch.int32, f"{name}: {tensor.dtype}, want int32"
            assert tuple(tensor.shape) == (rows,), f"{name}: {tuple(tensor.shape)}, want {(rows,)}"
    if output_idx is not None:
        shape, wanted = tuple(output_idx.shape), (rows, k)
        assert shape == wanted, f"output_idx: {shape}, want {wanted}"
        assert output_idx.dtype == indices_type, f"output_idx: {output_idx.dtype}, {indices_type}"
        assert k <= 1 or output_idx.stride(1) == 1, f"output_idx: strides {output_idx.stride()}"
    if nan_rows is not None:
        assert nan_rows.dtype == torch.bool, f"nan_rows: {nan_rows.dtype}, want bool"
        assert tuple(nan_rows.shape) == (rows,), (
            f"nan_rows: {tuple(nan_rows.shape)}, want {(rows,)}"
        )
    return rows, columns


def check_same_device(device: torch.device, **tensors: torch.Tensor | None) -> None:
    """Assert that what a kernel reads or writes by address is on the device of input; flags contiguous."""
    for name, tensor in tensors.items():
        if tensor is not None:
            assert tensor.device == device, f"{name}: on {tensor.device}, input on {device}"
    flags = tensors.get("nan_rows")
    assert flags is None or flags.is_contiguous(), f"nan_rows: strides {flags.stride()}, want (1,)"
