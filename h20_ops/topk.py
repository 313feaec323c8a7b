"""The k largest elements of each row, exact and deterministic, with row lengths.

CUDA tensors go to the SM90 kernel, others to the plain-torch twin; both give the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from h20_ops.cuda import topk_kernel as kernel

if TYPE_CHECKING:
    import torch


def topk(
    input: torch.Tensor,
    k: int,
    *,
    end: torch.Tensor | None = None,
    sorted: bool = False,
    sorted_index: bool = False,
    indices_type: torch.dtype | None = None,
    output_idx: torch.Tensor | None = None,
    output_idx_offset: torch.Tensor | None = None,
    idx_fill: int = -1,
    value_fill: float = float("-inf"),
    return_value: bool = True,
    nan_rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the k largest elements of each row and their columns.

    Of equal elements the lower columns are chosen; -0 and +0 are equal. NaN is never chosen: the row is
    flagged and has that many elements less. Infinities are ordinary values. What lies at or behind a row's
    end has no influence, NaN included.

    Args:
        input: bf16 or fp32, (rows, columns), rows strided; at most 2^23 columns.
        k: 1..4096.
        end: int32 (rows,), 0..columns, exclusive; all columns without it.
        sorted: by descending value, equal ones by ascending column; else by ascending column, which
            sorted_index asks for by name.
        indices_type: int64 (the default) or int32.
        output_idx: (rows, k) of indices_type, rows strided; written in place and returned.
        output_idx_offset: int32 (rows,), added to real columns only.
        idx_fill, value_fill: for the places behind the last element of a row with fewer than k.
        return_value: False gives None for the values.
        nan_rows: bool (rows,), set where NaN stands before a row's end.
    Returns:
        values as input (rows, k) or None; indices (rows, k), contiguous unless output_idx is given.
    """
    if not input.is_cuda:
        from h20_ops.torch_ref.topk import topk as twin

        return twin(
            input,
            k,
            end=end,
            sorted=sorted,
            sorted_index=sorted_index,
            indices_type=indices_type,
            output_idx=output_idx,
            output_idx_offset=output_idx_offset,
            idx_fill=idx_fill,
            value_fill=value_fill,
            return_value=return_value,
            nan_rows=nan_rows,
        )
    import torch

    from h20_ops.arguments_topk import check_same_device, check_topk

    dtype = indices_type or torch.int64
    rows, columns = check_topk(
        input,
        k,
        end,
        sorted,
        sorted_index,
        dtype,
        output_idx,
        output_idx_offset,
        return_value,
        nan_rows,
    )
    check_same_device(
        input.device,
        end=end,
        output_idx=output_idx,
        output_idx_offset=output_idx_offset,
        nan_rows=nan_rows,
    )
    indices = output_idx
    if indices is None:
        indices = torch.empty((rows, k), dtype=dtype, device=input.device)
    values = (
        torch.empty((rows, k), dtype=input.dtype, device=input.device) if return_value else None
    )
    if rows == 0:
        return values, indices
    is_bf16 = input.dtype == torch.bfloat16
    form, blocks = kernel.plan(rows, columns, k, _num_sms(input.device.index))
    end = end if end is None else end.contiguous()
    offset = output_idx_offset if output_idx_offset is None else output_idx_offset.contiguous()
    params = kernel.Params(
        input=_address(input),
        end=_address(end),
        offset=_address(offset),
        values=_address(values),
        indices=_address(indices),
        nan_rows=_address(nan_rows),
        row_stride=input.stride(0),
        index_stride=indices.stride(0),
        index_fill=idx_fill,
        value_fill=kernel.value_bits(value_fill, is_bf16=is_bf16),
        columns=columns,
        k=k,
        blocks=blocks,
        column_bits=kernel.column_bits(columns),
        wide=dtype == torch.int64,
        sorted=sorted,
    )
    with torch.cuda.device(input.device):
        kernel.launch(params, rows, form, is_bf16=is_bf16)
    return values, indices


def _address(tensor: Any) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())


@lru_cache
def _num_sms(device: int) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)
