"""The deep_select drop-in: upstream's names, defaults and fills."""

from __future__ import annotations

import inspect

import deep_select
import pytest
import torch
from deep_select.interface import get_stride_requirement, topk

from h20_ops.errors import FormatError, UnsupportedError

pytestmark = pytest.mark.torch


def test_the_signature_is_upstreams() -> None:
    parameters = inspect.signature(topk).parameters
    assert list(parameters) == [
        "input", "topk", "sorted", "begin", "end", "indices_type", "sorted_index", "hint",
        "output_idx", "output_idx_offset", "idx_oob_fill_value", "value_oob_fill_value",
        "return_value", "abort_when_nan_found",
    ]  # fmt: skip
    assert parameters["idx_oob_fill_value"].default == 2147483647
    assert topk(torch.zeros(1, 2), 1)[1].dtype == torch.int64
    assert deep_select.IS_H20_DROP_IN and get_stride_requirement()[0] == 1024


def test_the_indexers_decode_call_gives_contiguous_ascending_rows() -> None:
    scores = torch.full((4, 1024), torch.nan).bfloat16()[:, :600]
    ends = torch.tensor([600, 512, 3, 0], dtype=torch.int32)
    for row, end in enumerate(ends.tolist()):
        scores[row, :end] = torch.randn(
            end, generator=torch.Generator().manual_seed(row)
        ).bfloat16()
    values, indices = topk(
        scores, 512, sorted=False, end=ends, indices_type=torch.int32, sorted_index=True,
        idx_oob_fill_value=-1, return_value=False,
    )  # fmt: skip
    assert values is None and indices.is_contiguous() and indices.shape == (4, 512)
    assert indices[1].tolist() == list(range(512))
    assert indices[2].tolist() == [0, 1, 2] + [-1] * 509 and indices[3].tolist() == [-1] * 512
    worst = scores[0][indices[0].long()].min()
    left = torch.ones(600, dtype=torch.bool)
    left[indices[0].long()] = False
    assert worst >= scores[0][left].max()


def test_the_samplers_call_is_sorted_and_filled_with_upstreams_values() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    values, indices = topk(logits, 6, True, indices_type=torch.int32)
    assert torch.equal(values[:, :4], logits.sort(descending=True).values)  # type: ignore[index]
    assert bool((indices[:, 4:] == 2147483647).all()) and bool((values[:, 4:] == -torch.inf).all())  # type: ignore[index]


def test_nan_raises_where_the_device_may_be_read_and_is_left_out_where_not() -> None:
    scores = torch.zeros(3, 8)
    scores[1, 4] = torch.nan
    with pytest.raises(FormatError, match="NaN among the candidates of row 1"):
        topk(scores, 4)
    _, indices = topk(scores, 8, idx_oob_fill_value=-1, abort_when_nan_found=False)
    assert indices[1].tolist() == [0, 1, 2, 3, 5, 6, 7, -1]


def test_begin_and_hint_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="begin or hint"):
        topk(torch.zeros(1, 4), 2, begin=torch.zeros(1, dtype=torch.int32))
