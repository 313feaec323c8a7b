"""Twin of top-k: exact, deterministic, never NaN."""

from __future__ import annotations

import torch

from h20_ops.arguments_topk import check_topk

_CHUNK_ELEMENTS = 1 << 26
_LEAST = torch.iinfo(torch.int32).min


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
    """Return values and indices; the contract is h20_ops.topk's."""
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
    device = input.device
    indices = output_idx
    if indices is None:
        indices = torch.empty((rows, k), dtype=dtype, device=device)
    values = torch.empty((rows, k), dtype=input.dtype, device=device) if return_value else None
    step = max(1, _CHUNK_ELEMENTS // max(columns, k, 1))
    for start in range(0, rows, step):
        at = slice(start, start + step)
        limit = None if end is None else end[at]
        keys, is_nan = _keys(input[at], limit)
        if nan_rows is not None:
            nan_rows[at] = is_nan.any(dim=1)
        chosen = _choose(keys, k)
        if sorted:
            chosen = _by_value(keys, chosen)
        is_real = chosen < columns
        safe = torch.where(is_real, chosen, torch.zeros_like(chosen))
        if values is not None:
            taken = input[at].gather(1, safe) if columns else input.new_zeros(safe.shape)
            values[at] = torch.where(is_real, taken, torch.full_like(taken, value_fill))
        if output_idx_offset is not None:
            safe = safe + output_idx_offset[at].long().unsqueeze(1)
        indices[at] = torch.where(is_real, safe, torch.full_like(safe, idx_fill)).to(dtype)
    return values, indices


def _keys(rows: torch.Tensor, end: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int32 keys in the order of the values, the least number for what can not be chosen.

    -0 and +0 are one value. Also says where NaN stands before the end.
    """
    bits = (rows.float() + 0.0).view(torch.int32)
    is_nan = rows.isnan()
    keys = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    if end is not None:
        behind = torch.arange(rows.shape[1], device=rows.device) >= end.unsqueeze(1)
        is_nan = is_nan & ~behind
        keys = keys.masked_fill(behind, _LEAST)
    return keys.masked_fill(is_nan, _LEAST), is_nan


def _choose(keys: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k best columns of each row, ascending; the number of columns stands for none.

    Of equal keys the lower columns are chosen.
    """
    rows, columns = keys.shape
    chosen = torch.full((rows, k + 1), columns, dtype=torch.int64, device=keys.device)
    if columns == 0:
        return chosen[:, :k]
    count = min(k, columns)
    last = keys.topk(count, dim=1).values[:, -1:]
    better = keys > last
    equal = (keys == last) & (keys != _LEAST)
    left = count - better.sum(dim=1, keepdim=True)
    taken = better | (equal & (equal.cumsum(dim=1) <= left))
    place = torch.where(taken, taken.cumsum(dim=1) - 1, torch.full_like(keys, k, dtype=torch.int64))
    columns_of = torch.arange(columns, device=keys.device).expand(rows, -1)
    # what is not taken goes to one more place, which is cut off
    chosen.scatter_(1, place, columns_of)
    return chosen[:, :k]


def _by_value(keys: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the chosen columns by descending key; equal ones ascending, none last."""
    columns = keys.shape[1]
    is_real = chosen < columns
    safe = torch.where(is_real, chosen, torch.zeros_like(chosen))
    their_keys = keys.gather(1, safe) if columns else torch.zeros_like(chosen, dtype=torch.int32)
    their_keys = their_keys.masked_fill(~is_real, _LEAST)
    order = their_keys.sort(dim=1, descending=True, stable=True).indices
    return chosen.gather(1, order)
