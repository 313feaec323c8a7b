"""DeepSelect's functions with its signatures, served by h20_ops.topk.

Stricter than upstream where that is free: equal values are chosen by the lower column, so results repeat;
rows of any stride are taken; NaN is never chosen. Upstream leaves a row with NaN undefined and stops the
device, or marks the row's first index; here the row has fewer elements, and with abort_when_nan_found an
error is raised where the device may be read, which is neither during CUDA graph capture nor under torch's
sync guard. torch and h20_ops are imported by the first call, so that the package imports anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ROW_BYTES = 1024


def get_stride_requirement() -> tuple[int, int]:
    """Give what input rows and output rows should be multiples of, in bytes; any stride is taken."""
    return _ROW_BYTES, 32


def topk(
    input: torch.Tensor,
    topk: int,
    sorted: bool = False,
    begin: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    indices_type: torch.dtype | None = None,
    sorted_index: bool = False,
    hint: torch.Tensor | None = None,
    output_idx: torch.Tensor | None = None,
    output_idx_offset: torch.Tensor | None = None,
    idx_oob_fill_value: int = 2147483647,
    value_oob_fill_value: float = float("-inf"),
    return_value: bool = True,
    abort_when_nan_found: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Give values (or None) and indices of the topk largest elements of each row.

    Args:
        input: bf16 or fp32 (rows, columns).
        begin, hint: None.
        indices_type: int64 (the default) or int32.
        The others: as h20_ops.topk, idx_oob_fill_value and value_oob_fill_value being its fills.
    Raises:
        UnsupportedError: begin or hint.
        FormatError: NaN before a row's end, naming the first such row.
    """
    import torch

    from h20_ops import topk as select
    from h20_ops.errors import UnsupportedError

    if begin is not None or hint is not None:
        raise UnsupportedError(
            "begin or hint given to topk", "None for both, as upstream", "slice the input instead"
        )
    nan_rows = None
    if abort_when_nan_found and _may_read(input.device):
        nan_rows = torch.empty(input.shape[0], dtype=torch.bool, device=input.device)
    values, indices = select(
        input,
        topk,
        end=end,
        sorted=sorted,
        sorted_index=sorted_index,
        indices_type=indices_type,
        output_idx=output_idx,
        output_idx_offset=output_idx_offset,
        idx_fill=idx_oob_fill_value,
        value_fill=value_oob_fill_value,
        return_value=return_value,
        nan_rows=nan_rows,
    )
    if nan_rows is not None:
        _refuse_nan(nan_rows)
    return values, indices


def _may_read(device: torch.device) -> bool:
    """Say whether the device may be waited for here."""
    import torch

    if device.type != "cuda":
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0


def _refuse_nan(nan_rows: torch.Tensor) -> None:
    from h20_ops.errors import FormatError

    if bool(nan_rows.any()):
        first = int(nan_rows.nonzero()[0, 0])
        raise FormatError(
            f"NaN among the candidates of row {first}, {int(nan_rows.sum())} rows in all",
            "numbers or infinities before each row's end",
            "find the first tensor with NaN by ./inv parity; the scores' inputs come first",
        )
