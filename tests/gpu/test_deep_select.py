"""The deep_select drop-in on the GPU: the engine's calls, inside and outside capture."""

from __future__ import annotations

import pytest
import torch
from deep_select.interface import topk

from h20_ops.errors import FormatError
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.topk_cases import TopkCase, make_ends, make_rows
from h20_ops.torch_ref import topk as twin

pytestmark = pytest.mark.gpu
DECODE = TopkCase(rows=64, columns=131_072, k=512, dtype=torch.bfloat16, kind="logits", ends=True)


def decode(scores: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    values, indices = topk(
        scores, 512, sorted=False, end=ends, indices_type=torch.int32, sorted_index=True,
        idx_oob_fill_value=-1, return_value=False,
    )  # fmt: skip
    assert values is None
    return indices


def test_the_decode_call_gives_contiguous_ascending_rows() -> None:
    scores, ends = make_rows(DECODE, "cuda"), make_ends(DECODE, "cuda")
    indices = decode(scores, ends)
    assert indices.is_contiguous() and indices.dtype == torch.int32
    check_bitwise("indices", indices.long(), twin(scores, 512, end=ends)[1])


def test_the_prefill_call_writes_row_slices_of_a_larger_buffer_in_place() -> None:
    case = TopkCase(rows=200, columns=32_768, k=512, dtype=torch.bfloat16, ends=True)
    scores, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    offset = torch.arange(200, dtype=torch.int32, device="cuda") * 3
    buffer = torch.full((300, 512), -1, dtype=torch.int32, device="cuda")
    target = buffer[50:250]
    _, indices = topk(
        scores, 512, end=ends, indices_type=torch.int32, sorted_index=True, output_idx=target,
        output_idx_offset=offset, idx_oob_fill_value=-1, return_value=False,
    )  # fmt: skip
    assert indices is target
    want = twin(scores, 512, end=ends, output_idx_offset=offset)[1]
    check_bitwise("indices", buffer[50:250].long(), want)
    assert bool((buffer[:50] == -1).all()) and bool((buffer[250:] == -1).all())


def test_the_candidate_blocks_call_takes_forced_blocks_and_uninitialised_columns() -> None:
    case = TopkCase(rows=100, columns=16_384, k=2048, dtype=torch.bfloat16, ends=True)
    scores, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    assert ends is not None
    last = (ends - 1).clamp(min=0).long().unsqueeze(1)
    scores.scatter_(1, last, torch.inf)
    scores.masked_fill_(torch.arange(16_384, device="cuda") >= ends.unsqueeze(1), torch.nan)
    _, indices = topk(
        scores, 2048, sorted=False, end=ends, indices_type=torch.int32, sorted_index=True,
        idx_oob_fill_value=-1, return_value=False,
    )  # fmt: skip
    check_bitwise("indices", indices.long(), twin(scores, 2048, end=ends)[1])
    real = ends > 0
    assert bool(((indices == last).any(dim=1) == real).all())


def test_the_samplers_call_takes_every_fifth_row_and_sorts() -> None:
    logits = torch.randn(
        40, 129_280, generator=torch.Generator("cuda").manual_seed(1), device="cuda"
    )
    every_fifth = logits[::5]
    values, indices = topk(every_fifth, 50, True, indices_type=torch.int32)
    want = every_fifth.topk(50)
    assert values is not None
    check_bitwise("values", values, want.values)
    check_bitwise("found", every_fifth.gather(1, indices.long()), want.values)


def test_nan_raises_outside_capture_and_guard_only() -> None:
    scores, ends = make_rows(DECODE, "cuda"), make_ends(DECODE, "cuda")
    clean = decode(scores, ends)
    scores[0, 5] = torch.nan
    with pytest.raises(FormatError, match="NaN among the candidates of row 0, 1 rows in all"):
        decode(scores, ends)
    torch.cuda.set_sync_debug_mode("error")
    try:
        guarded = decode(scores, ends)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check_bitwise("guarded", guarded.long(), twin(scores, 512, end=ends)[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode(scores, ends)
    captured.fill_(-9)
    graph.replay()
    check_bitwise("captured", captured, guarded)
    scores[0, 5] = scores[0, 6]
    check_bitwise("rows without NaN", guarded[1:], clean[1:])


def test_nan_behind_the_end_does_not_raise() -> None:
    scores, ends = make_rows(DECODE, "cuda"), make_ends(DECODE, "cuda")
    assert ends is not None
    clean = decode(scores, ends)
    scores.masked_fill_(torch.arange(DECODE.columns, device="cuda") >= ends.unsqueeze(1), torch.nan)
    check_bitwise("indices", decode(scores, ends), clean)
