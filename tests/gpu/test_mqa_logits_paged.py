"""mqa_logits_paged on the GPU: against exact sums, against itself, and against its plain-torch twin.

The bounds are those of h20_ops.testing.mqa_logits_paged_cases. Whatever a case's block tables do not
list is poison.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from h20_ops import mqa_logits_paged
from h20_ops.kv_cache import INDEX_MXFP4
from h20_ops.kv_cache.records import field_view, write_kv
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.mqa_logits_paged_cases import (
    SUM_ERROR,
    PagedCase,
    candidate_cases,
    check_row,
    far_cases,
    make_paged,
    paged_cases,
    scale_of,
)
from h20_ops.torch_ref.mqa_logits_paged import mqa_logits_paged as twin

pytestmark = pytest.mark.gpu
TILE = 128
MIXED = PagedCase(rows=40, max_kv_len=3000, lengths=(3000, 5, 0, 700, 1, 2999, 64))


@pytest.fixture(autouse=True)
def exact_fp32_twin() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    gc.collect()
    torch.cuda.empty_cache()


def length_of(given: dict[str, Any], row: int) -> int:
    return min(int(given["klen"][row]), int(given["max_kv_len"]))


def seen(given: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """The dense logits with all that is not promised set to 0."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    valid = columns < given["klen"].clamp(0, given["max_kv_len"]).unsqueeze(1)
    return torch.where(valid, logits, torch.zeros((), dtype=logits.dtype, device=logits.device))


def checked_rows(case: PagedCase) -> list[int]:
    """Rows to compare with exact sums: all of a few, else the ends and some between."""
    if case.rows <= 40:
        return list(range(case.rows))
    return sorted({*range(12), *range(case.rows - 8, case.rows), *range(0, case.rows, 97)})


@pytest.mark.parametrize("case", [*paged_cases(), *far_cases()], ids=lambda case: case.id)
def test_logits_are_the_exact_sums_within_their_bound(case: PagedCase) -> None:
    given = make_paged(case, "cuda")
    for dtype in (torch.bfloat16, torch.float32):
        logits = mqa_logits_paged(**given, out_dtype=dtype)
        assert logits.shape == (case.rows, case.max_kv_len) and logits.dtype == dtype
        assert logits.stride(1) == 1 and logits.stride(0) * dtype.itemsize % 1024 == 0
        for row in checked_rows(case):
            check_row(case.id, logits, given, row)
            length = length_of(given, row)
            behind = logits[row, length : -(-length // TILE) * TILE]
            assert bool((behind == -torch.inf).all()), f"row {row}, behind column {length}"


@pytest.mark.parametrize("case", [*candidate_cases()], ids=lambda case: case.id)
def test_candidates_are_the_dense_logits_bit_for_bit(case: PagedCase) -> None:
    given = make_paged(case, "cuda")
    compact = mqa_logits_paged(**given)
    blocks = given.pop("candidate_blocks").long()
    block = given.pop("candidate_block_size")
    dense = mqa_logits_paged(**given)
    columns = (blocks.unsqueeze(-1) * block + torch.arange(block, device="cuda")).flatten(1)
    valid = (blocks >= 0).repeat_interleave(block, 1) & (columns < given["klen"].unsqueeze(1))
    want = dense.gather(1, columns.clamp(0, dense.shape[1] - 1))
    zero = torch.zeros((), dtype=dense.dtype, device="cuda")
    check_bitwise("logits", torch.where(valid, compact, zero), torch.where(valid, want, zero))
    assert int(valid.sum()) > 0
    slots = (given["klen"].unsqueeze(1) + block - 1) // block
    counted = torch.arange(compact.shape[1], device="cuda") // block < slots
    assert bool((compact[counted & ~valid] == -torch.inf).all())


def test_candidates_score_what_the_twin_scores() -> None:
    case = PagedCase(rows=7, max_kv_len=5000, lengths=(5000, 8, 0, 4999, 900), candidates=64)
    given = make_paged(case, "cuda")
    got = mqa_logits_paged(**given, out_dtype=torch.float32, fill=True)
    want = twin(**given, out_dtype=torch.float32, fill=True)
    assert torch.equal(got.isinf(), want.isinf())
    finite = want.isfinite()
    largest = max(float(scale_of(given, row).max()) for row in (0, 3, 4))
    assert float((got - want)[finite].abs().max()) <= largest * SUM_ERROR


@pytest.mark.parametrize("candidates", [0, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fill_defines_every_column(candidates: int, dtype: torch.dtype) -> None:
    case = replace(MIXED, candidates=candidates)
    given = make_paged(case, "cuda")
    poison = torch.full((64 << 20,), 0x7F, dtype=torch.uint8, device="cuda")
    del poison  # what torch hands out next is likely to be this
    got = mqa_logits_paged(**given, out_dtype=dtype, fill=True)
    want = twin(**given, out_dtype=dtype, fill=True)
    assert torch.equal(got == -torch.inf, want == -torch.inf) and not bool(got.isnan().any())


def test_repeated_calls_give_the_same_bits() -> None:
    given = make_paged(MIXED, "cuda")
    first = seen(given, mqa_logits_paged(**given))
    for _ in range(30):
        check_bitwise("logits", seen(given, mqa_logits_paged(**given)), first)


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    given = make_paged(MIXED, "cuda")
    together = seen(given, mqa_logits_paged(**given))
    per_row = ("q", "q_sf", "weights", "klen", "block_tables")
    for rows in (slice(0, 1), slice(3, 4), slice(5, 40), slice(39, 40)):
        alone = {**given, **{name: given[name][rows] for name in per_row}}
        check_bitwise("logits", seen(alone, mqa_logits_paged(**alone)), together[rows])


@pytest.mark.parametrize("candidates", [0, 64])
def test_a_captured_graph_follows_lengths_tables_and_lists(candidates: int) -> None:
    case = replace(MIXED, candidates=candidates)
    given = make_paged(case, "cuda")
    mqa_logits_paged(**given, fill=True)  # compiled and loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mqa_logits_paged(**given, fill=True)
    for shift in (0, 1, 17):
        for name in ("q", "q_sf", "weights", "klen", "block_tables", "candidate_blocks"):
            if name in given:
                given[name].copy_(given[name].roll(shift, 0))
        captured.fill_(torch.nan)
        graph.replay()
        check_bitwise("logits", captured.clone(), mqa_logits_paged(**given, fill=True).clone())


def test_nothing_is_read_on_the_host() -> None:
    given = make_paged(MIXED, "cuda")
    mqa_logits_paged(**given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mqa_logits_paged(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_lengths_below_zero_and_beyond_the_columns_are_cut() -> None:
    given = make_paged(PagedCase(rows=3, max_kv_len=500, lengths=(500,)), "cuda")
    want = mqa_logits_paged(**given, fill=True)
    given["klen"].copy_(torch.tensor([10_000, -5, 500]))
    got = mqa_logits_paged(**given, fill=True)
    check_bitwise("row 0", got[0].clone(), want[0].clone())
    assert bool((got[1] == -torch.inf).all())


def test_nan_exponents_make_their_own_logits_nan_and_no_others() -> None:
    given = make_paged(PagedCase(rows=3, max_kv_len=200, lengths=(200,)), "cuda")
    clean = mqa_logits_paged(**given, out_dtype=torch.float32)
    page = int(given["block_tables"][1, 1])
    field_view(given["cache"], INDEX_MXFP4.scales)[page, 9, 2] = 255
    got = mqa_logits_paged(**given, out_dtype=torch.float32)
    assert bool(got[1, 73].isnan()) and int(got.isnan().sum()) == 1
    got[1, 73] = clean[1, 73]
    check_bitwise("the others", got[:, :200].clone(), clean[:, :200].clone())
    given["q_sf"].view(torch.uint8).view(3, 32, 4)[2, 31, 0] = 255
    got = mqa_logits_paged(**given)
    assert bool(got[2].isnan().all()) and not bool(got[0].isnan().any())


@pytest.mark.parametrize("below", [*range(21), 40, 127])
@pytest.mark.parametrize("group", range(4))
def test_groups_far_below_the_largest_round_to_a_step_of_its_scale(below: int, group: int) -> None:
    # One channel per vector that is not zero: every sum has one term, so only the key is rounded.
    cache = torch.zeros((1, 64, 1, 68), dtype=torch.uint8, device="cuda")
    codes, scales = (field_view(cache, field) for field in (INDEX_MXFP4.values, INDEX_MXFP4.scales))
    scales.fill_(127)
    scales[..., group] = 127 - below
    codes[0, :8, 16 * group + 5] = torch.arange(8, dtype=torch.uint8, device="cuda")
    q = torch.zeros((1, 32, 64), dtype=torch.int8, device="cuda")
    q[0, 3, 16 * group + 5] = 2  # 1.0
    got = mqa_logits_paged(
        q,
        torch.full((1, 32), 0x7F7F7F7F, dtype=torch.int32, device="cuda"),
        cache,
        torch.ones((1, 32), dtype=torch.bfloat16, device="cuda"),
        torch.tensor([8], dtype=torch.int32, device="cuda"),
        torch.zeros((1, 1), dtype=torch.int32, device="cuda"),
        max_kv_len=8,
        out_dtype=torch.float32,
    )
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    want = torch.round(magnitudes * 2.0 ** (15 - below)) * 2.0**-15  # exact up to 14
    check_bitwise("logits", got[0].cpu(), want)


def test_every_code_is_read_exactly_in_every_channel() -> None:
    # Key c has code c % 16 in channel c / 16 and nothing else; the query weighs channels by powers of two.
    keys = 128 * 16
    cache = torch.zeros((keys // 64, 64, 1, 68), dtype=torch.uint8, device="cuda")
    codes = field_view(cache, INDEX_MXFP4.values).view(-1, 64, 64)
    field_view(cache, INDEX_MXFP4.scales).fill_(127)
    number = torch.arange(keys, device="cuda")
    channel, code = number // 16, number % 16
    codes[number // 64, number % 64, channel // 2] = (code << 4 * (channel % 2)).to(torch.uint8)
    q = torch.zeros((1, 32, 64), dtype=torch.int8, device="cuda")
    # two heads of opposite sign, so that relu lets every code through one of them
    q[0, 0] = 0x22
    q[0, 1] = -0x56  # 0xAA: -1 twice
    weights = torch.zeros((1, 32), dtype=torch.bfloat16, device="cuda")
    weights[0, 0], weights[0, 1] = 1.0, 256.0
    order = torch.randperm(keys // 64, device="cuda", generator=_rng(4)).int()
    shuffled = torch.empty_like(cache)
    shuffled[order.long()] = cache
    got = mqa_logits_paged(
        q,
        torch.full((1, 32), 0x7F7F7F7F, dtype=torch.int32, device="cuda"),
        shuffled,
        weights,
        torch.tensor([keys], dtype=torch.int32, device="cuda"),
        order.unsqueeze(0),
        max_kv_len=keys,
        out_dtype=torch.float32,
    )
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device="cuda")
    want = magnitudes[code & 7] * torch.where(code >= 8, 256.0, 1.0)
    check_bitwise("logits", got[0].clone(), want)


def test_pages_written_by_the_twins_writer_are_read_alike() -> None:
    rows = torch.randn((640, 128), device="cuda", generator=_rng(9))
    cache = torch.full((6, 128, 1, 68), 0xFF, dtype=torch.uint8, device="cuda")
    slots = torch.arange(640, device="cuda") + 128
    write_kv(cache, slots, rows, INDEX_MXFP4)
    given = make_paged(PagedCase(rows=2, max_kv_len=640, lengths=(640,), page_size=128), "cuda")
    given |= {"cache": cache}
    given["block_tables"] = torch.arange(1, 6, device="cuda").int().expand(2, 5).contiguous()
    logits = mqa_logits_paged(**given)
    for row in (0, 1):
        check_row("written", logits, given, row)


def test_strided_arguments_are_read_in_place() -> None:
    given = make_paged(replace(MIXED, candidates=32), "cuda")
    want = mqa_logits_paged(**given, fill=True).clone()
    pad = torch.nn.functional.pad
    strided = {
        **given,
        "q": pad(given["q"], (0, 16, 0, 3))[:, :32, :64],
        "q_sf": pad(given["q_sf"], (0, 5))[:, :32],
        "weights": pad(given["weights"], (0, 8))[:, :32],
        "klen": given["klen"].repeat_interleave(2)[::2],
        "block_tables": pad(given["block_tables"], (0, 3))[:, :-3],
        "candidate_blocks": pad(given["candidate_blocks"], (0, 1))[:, :-1],
    }
    check_bitwise("logits", mqa_logits_paged(**strided, fill=True).clone(), want)
    crooked = {**given, "q": pad(given["q"], (1, 3))[..., 1:65]}
    check_bitwise("logits", mqa_logits_paged(**crooked, fill=True).clone(), want)


def test_no_rows_and_no_keys_are_legal() -> None:
    given = make_paged(PagedCase(rows=4, max_kv_len=300, lengths=(0,)), "cuda")
    assert mqa_logits_paged(**given).shape == (4, 300)
    assert bool((mqa_logits_paged(**given, fill=True) == -torch.inf).all())
    per_row = ("q", "q_sf", "weights", "klen", "block_tables")
    none = {**given, **{name: given[name][:0] for name in per_row}}
    assert mqa_logits_paged(**none).shape == (0, 300)


def test_calls_in_a_row_do_not_disturb_each_other() -> None:
    # Kernels of successive calls may overlap at their ends.
    cases = [replace(MIXED, rows=rows) for rows in (1, 8, 300, 3, 64)]
    sets = [make_paged(case, "cuda") for case in cases]
    want = [seen(given, mqa_logits_paged(**given)) for given in sets]
    torch.cuda.synchronize()
    for _ in range(20):
        got = [mqa_logits_paged(**given) for given in sets]
        for given, logits, first in zip(sets, got, want, strict=True):
            check_bitwise("logits", seen(given, logits), first)


def test_one_changed_key_is_told_from_the_kernels_logits() -> None:
    case = PagedCase(rows=1, max_kv_len=200, lengths=(200,))
    given = make_paged(case, "cuda")
    logits = mqa_logits_paged(**given)
    page = int(given["block_tables"][0, 1])
    codes = field_view(given["cache"], INDEX_MXFP4.values)
    codes[page, 7, :4] ^= 0x77
    with pytest.raises(AssertionError, match="column 71"):
        check_row(case.id, logits, given, 0)


def _rng(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)
