"""The k largest elements of each row, exact and deterministic, with row lengths.

Served by plain torch so far, on any device: right, and not fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
