"""topk on the GPU against its plain-torch twin: the same bits, for every kind of row and every form."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from h20_ops import topk
from h20_ops.cuda import topk_kernel as kernel
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.topk_cases import (
    KINDS,
    TopkCase,
    cases,
    make_ends,
    make_rows,
    mislead,
)
from h20_ops.torch_ref import topk as twin

pytestmark = pytest.mark.gpu
Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
SHORT = TopkCase(rows=40, columns=20_000, k=512, kind="logits")
LONG = TopkCase(rows=3, columns=200_000, k=512, kind="logits", ends=True)
DTYPES = (torch.float32, torch.bfloat16)
FORMS = (kernel.WIDE, kernel.NARROW)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def select(function: Any, rows: torch.Tensor, case: TopkCase, **more: Any) -> Result:
    """Values, indices and flags; the places of indices and flags hold garbage before."""
    flags = torch.arange(case.rows, device=rows.device) % 2 == 0
    indices = torch.full((case.rows, case.k), 77, dtype=torch.int64, device=rows.device)
    arguments = {"sorted": case.sorted, "output_idx": indices, "nan_rows": flags, **more}
    values, found = function(rows, case.k, **arguments)
    assert found is arguments["output_idx"]
    return values, found, flags


def check(got: Result, want: Result) -> None:
    check_bitwise("indices", got[1], want[1])
    check_bitwise("values", got[0], want[0])
    check_bitwise("flags", got[2].to(torch.uint8), want[2].to(torch.uint8))


def check_case(case: TopkCase, **more: Any) -> None:
    rows, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    check(select(topk, rows, case, end=ends, **more), select(twin, rows, case, end=ends, **more))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_the_kernel_gives_its_twins_bits(case: TopkCase) -> None:
    check_case(case)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
@pytest.mark.parametrize("sorted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forms", FORMS, ids=["wide", "narrow"])
def test_any_form_and_number_of_blocks_gives_the_same_result(
    forms: dict[int, kernel.Form],
    dtype: torch.dtype,
    sorted: bool,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = replace(LONG, dtype=dtype, sorted=sorted)
    monkeypatch.setattr(kernel, "plan", lambda *_: (forms[512], blocks))
    for kind in KINDS:
        check_case(replace(case, kind=kind))
    check_case(replace(case, rows=300, columns=3000))
    for k in (1024, 2048, 4096):
        monkeypatch.setattr(kernel, "plan", lambda *_, k=k: (forms[k], blocks))
        check_case(replace(case, rows=20, columns=100_000, k=k))


@pytest.mark.parametrize("sorted", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 8])
@pytest.mark.parametrize("forms", FORMS, ids=["wide", "narrow"])
def test_rows_that_mislead_the_guess_are_read_again(
    forms: dict[int, kernel.Form], blocks: int, sorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "plan", lambda *_: (forms[512], blocks))
    for dtype in DTYPES:
        case = TopkCase(rows=9, columns=200_000, k=512, dtype=dtype, sorted=sorted)
        rows = make_rows(case, "cuda")
        mislead(rows, forms[512].threads, blocks)
        check(select(topk, rows, case), select(twin, rows, case))


@pytest.mark.parametrize("case", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["logits", "few values"])
def test_repeated_runs_give_the_same_bits(case: TopkCase, kind: str) -> None:
    case = replace(case, kind=kind, dtype=torch.bfloat16)
    rows, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    first = select(topk, rows, case, end=ends)
    for _ in range(30):
        check(select(topk, rows, case, end=ends), first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_behind_a_rows_end_matters(dtype: torch.dtype) -> None:
    case = TopkCase(rows=60, columns=30_000, k=512, dtype=dtype, ends=True)
    rows, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    assert ends is not None
    want = select(twin, rows, case, end=ends)
    behind = torch.arange(case.columns, device="cuda") >= ends.unsqueeze(1)
    for garbage in (torch.nan, -torch.nan, torch.inf, 1e30):
        rows.masked_fill_(behind, garbage)
        got = select(topk, rows, case, end=ends)
        check(got, want)
        assert not bool(got[2].any())


def test_ends_outside_the_row_count_as_its_borders() -> None:
    case = TopkCase(rows=6, columns=1000, k=64)
    rows = make_rows(case, "cuda")
    ends = torch.tensor([-5, 2000, -(2**31), 2**31 - 1, 1000, 0], dtype=torch.int32, device="cuda")
    check(select(topk, rows, case, end=ends), select(twin, rows, case, end=ends))


@pytest.mark.parametrize("indices_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("sorted", [False, True])
def test_strided_outputs_offsets_and_fills(indices_type: torch.dtype, sorted: bool) -> None:
    case = TopkCase(rows=50, columns=9000, k=700, ends=True, sorted=sorted, dtype=torch.bfloat16)
    rows, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    results = []
    for function in (topk, twin):
        storage = torch.full((50, 1024), 99, dtype=indices_type, device="cuda")
        more: dict[str, Any] = {
            "indices_type": indices_type,
            "output_idx": storage[:, 100:800],
            "output_idx_offset": torch.arange(50, dtype=torch.int32, device="cuda") * 1000,
            "idx_fill": 2147483647,
            "value_fill": 1.00390626,
        }
        found = select(function, rows, case, end=ends, **more)
        results.append((found[0], storage, found[2]))
        assert bool((storage[:, :100] == 99).all()) and bool((storage[:, 800:] == 99).all())
    check(*results)


def test_without_values_the_indices_are_the_same_and_contiguous() -> None:
    rows, ends = make_rows(LONG, "cuda"), make_ends(LONG, "cuda")
    none, indices = topk(
        rows, LONG.k, end=ends, sorted_index=True, indices_type=torch.int32, return_value=False
    )
    assert none is None and indices.is_contiguous() and indices.dtype == torch.int32
    check_bitwise("indices", indices.long(), twin(rows, LONG.k, end=ends)[1])


@pytest.mark.parametrize("case", [SHORT, LONG], ids=["short", "long"])
def test_a_captured_graph_follows_its_inputs(case: TopkCase) -> None:
    rows, ends = make_rows(case, "cuda"), make_ends(case, "cuda")
    select(topk, rows, case, end=ends)  # compiled and loaded before the capture
    flags = torch.zeros(case.rows, dtype=torch.bool, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, indices = topk(rows, case.k, end=ends, nan_rows=flags)
    for shift in (0, 1, 2):
        rows.copy_(rows.roll(shift, 0) + shift)
        rows[shift, 3] = torch.nan
        assert values is not None
        values.fill_(-7.0)
        indices.fill_(-7)
        graph.replay()
        check((values, indices, flags), select(twin, rows, case, end=ends))


def test_a_call_waits_for_nothing_and_may_be_made_under_the_sync_guard() -> None:
    rows, ends = make_rows(LONG, "cuda"), make_ends(LONG, "cuda")
    want = select(topk, rows, LONG, end=ends)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = select(topk, rows, LONG, end=ends)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(got, want)


def test_calls_in_a_row_see_what_the_call_before_wrote() -> None:
    # Kernels of successive calls may overlap at their ends; each must wait for what it reads.
    case = replace(SHORT, rows=200)
    rows = make_rows(case, "cuda")
    want_first = twin(rows, 4096, sorted=True)[0]
    assert want_first is not None
    want = twin(want_first, 512)
    for _ in range(50):
        middle = topk(rows, 4096, sorted=True)[0]
        assert middle is not None
        middle = middle.clone() if _ % 2 else middle
        got = topk(middle, 512)
        middle = topk(rows, 4096, sorted=True)[0]  # may take the place of what is read
        check_bitwise("indices", got[1], want[1])


def test_no_rows_and_no_columns_are_fine() -> None:
    values, indices = topk(torch.zeros(0, 100, device="cuda"), 5)
    assert values is not None and values.shape == indices.shape == (0, 5)
    flags = torch.ones(2, dtype=torch.bool, device="cuda")
    values, indices = topk(torch.zeros(2, 0, device="cuda"), 3, nan_rows=flags, value_fill=2.0)
    assert values is not None
    assert values.tolist() == [[2.0] * 3] * 2 and indices.tolist() == [[-1] * 3] * 2
    assert flags.tolist() == [False, False]


def test_a_result_with_one_tie_moved_is_told_from_the_twins() -> None:
    case = replace(SHORT, kind="few values")
    rows = make_rows(case, "cuda")
    got = select(topk, rows, case)
    cut = rows[7].topk(case.k).values[-1]
    left = (rows[7] == cut).nonzero()[-1]  # the last of those equal at the cut is not chosen
    rows[7, left] = cut + 0.25
    with pytest.raises(AssertionError, match=r"indices: first difference at .*\(7, "):
        check(got, select(twin, rows, case))
