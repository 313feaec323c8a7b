"""mqa_logits_prefill on the GPU against its plain-torch twin, and its candidate form against its dense one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from h20_ops import mqa_logits_prefill
from h20_ops.cuda.mqa_logits_prefill_call import (
    MAX_UNITED_PIECES,
    PIECE_KEYS,
    STEP_KEYS,
    Kind,
)
from h20_ops.cuda.mqa_logits_prefill_kernel import launch
from h20_ops.errors import UnsupportedError
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.mqa_logits_prefill_cases import (
    LogitsCase,
    LogitsInputs,
    candidate_cases,
    check_dense,
    dense_cases,
    make_logits,
    neighbour_candidates,
    packed,
    valid_columns,
)
from h20_ops.torch_ref import mqa_logits_prefill as twin

pytestmark = pytest.mark.gpu
FP32 = torch.float32


@pytest.fixture(autouse=True)
def exact_fp32_twin() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    gc.collect()
    torch.cuda.empty_cache()


def by_id(cases: Iterator[LogitsCase]) -> list[pytest.param]:  # type: ignore[valid-type]
    return [pytest.param(case, id=case.id) for case in cases]


@pytest.mark.parametrize("case", by_id(dense_cases()))
def test_dense_logits_agree_with_the_twin(case: LogitsCase) -> None:
    inputs = make_logits(case, "cuda")
    got = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32, fill=True)
    want = twin(**inputs.kwargs(), out_dtype=FP32)
    check_dense(inputs, got, want)
    assert bool((got[~valid_columns(inputs)] == -torch.inf).all()), "filled with -inf"
    assert got.stride(0) * 4 % 1024 == 0 and got.data_ptr() % 16 == 0
    rounded = mqa_logits_prefill(**inputs.kwargs(), fill=True)
    check_bitwise("bf16 logits", rounded, got.bfloat16())
    assert rounded.stride(0) * 2 % 1024 == 0


@pytest.mark.parametrize("case", by_id(dense_cases()))
def test_a_row_is_written_to_the_end_of_its_last_tile(case: LogitsCase) -> None:
    inputs = make_logits(case, "cuda")
    filled = mqa_logits_prefill(**inputs.kwargs(), fill=True)
    width = filled.stride(0)
    taken = torch.full((case.rows * width,), torch.nan, dtype=torch.bfloat16, device="cuda")
    del taken  # what torch hands out next holds NaN
    torch.cuda.synchronize()
    got = mqa_logits_prefill(**inputs.kwargs())
    lengths = valid_columns(inputs).sum(1)
    ends = (inputs.ks + lengths + STEP_KEYS - 1) // STEP_KEYS * STEP_KEYS - inputs.ks
    ends = torch.where(lengths > 0, ends, torch.zeros_like(ends))
    written = torch.arange(got.shape[1], device="cuda") < ends.unsqueeze(1)
    check_bitwise("logits", got[written], filled[written])


def kinds_of_candidates() -> list[pytest.param]:  # type: ignore[valid-type]
    cases = [
        (case, kind)
        for case in candidate_cases()
        for kind in (Kind.GATHERED, Kind.UNITED)
        if kind == Kind.GATHERED or case.candidates * case.block // PIECE_KEYS <= MAX_UNITED_PIECES
    ]
    return [pytest.param(case, kind, id=f"{case.id}-{kind.name.lower()}") for case, kind in cases]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("case,kind", kinds_of_candidates())
def test_candidates_are_the_dense_logits_of_their_blocks_bit_for_bit(
    case: LogitsCase, kind: Kind, dtype: torch.dtype
) -> None:
    inputs = make_logits(case, "cuda")
    assert inputs.candidate_blocks is not None
    dense = mqa_logits_prefill(**inputs.dense(), out_dtype=dtype, fill=True)
    ids = inputs.candidate_blocks.long()
    columns = (ids.unsqueeze(-1) * case.block + torch.arange(case.block, device="cuda")).flatten(1)
    lengths = valid_columns(inputs).sum(1, keepdim=True)
    valid = (ids >= 0).repeat_interleave(case.block, 1) & (columns < lengths)
    want = dense.gather(1, columns.clamp(0, dense.shape[1] - 1)).masked_fill(~valid, -torch.inf)
    assert int(valid.sum()) > 0
    per_row = 1024 // dtype.itemsize
    width = -(-want.shape[1] // per_row) * per_row
    out = torch.full((case.rows, width), torch.nan, dtype=dtype, device="cuda")
    launch(**inputs.kwargs(), out=out, kind=kind)
    slots = (-(-lengths // case.block)).clamp(max=case.candidates)
    written = torch.arange(width, device="cuda") < -(-slots * case.block // 128) * 128
    padded = torch.full_like(out, -torch.inf)
    padded[:, : want.shape[1]] = want
    check_bitwise("candidate logits", out[written], padded[written])
    assert bool(out[~written].isnan().all()), "written behind the end of a row's last tile"


@pytest.mark.parametrize("rows", [16, 133])
def test_gathered_and_united_candidates_are_the_same_bits(rows: int) -> None:
    keys, count = 40_000, 600
    inputs = make_logits(LogitsCase(rows=rows, keys=keys, ranges="full"), "cuda")
    rng = torch.Generator("cuda").manual_seed(rows)
    ids = neighbour_candidates(rows, keys // 8, count, rng)
    inputs = replace(inputs, candidate_blocks=ids, candidate_block_size=8)
    outs = []
    for kind in (Kind.GATHERED, Kind.UNITED):
        outs.append(torch.full((rows, 5120), torch.nan, dtype=torch.bfloat16, device="cuda"))
        launch(**inputs.kwargs(), out=outs[-1], kind=kind)
    check_bitwise("united logits", outs[1][:, : count * 8], outs[0][:, : count * 8])


@pytest.mark.parametrize("rows", [29, 129])
def test_slots_behind_the_last_block_of_a_row_are_ignored_whatever_they_hold(rows: int) -> None:
    case = LogitsCase(rows=rows, keys=3000, ranges="odd", block=8, candidates=200, seed=8)
    inputs = make_logits(case, "cuda")
    want = mqa_logits_prefill(**inputs.kwargs(), fill=True)
    assert inputs.candidate_blocks is not None
    unused = inputs.candidate_blocks < 0
    assert bool(unused.any())
    for garbage in (0, -7, 1 << 30, 2**31 - 1):
        inputs.candidate_blocks[unused] = garbage
        check_bitwise("logits", mqa_logits_prefill(**inputs.kwargs(), fill=True), want)


@pytest.mark.parametrize("heads", [32, 64])
def test_groups_that_span_more_than_fourteen_are_rounded_within_the_bound(heads: int) -> None:
    inputs = make_logits(LogitsCase(rows=40, keys=900, heads=heads, spread=30), "cuda")
    got = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32)
    check_dense(inputs, got, twin(**inputs.kwargs(), out_dtype=FP32))


@pytest.mark.parametrize(
    "q_base,k_base", [(8, 230), (230, 8), (0, 127), (127, 0), (1, 240), (244, 4), (127, 200)]
)
def test_scales_far_from_one_neither_overflow_nor_vanish(q_base: int, k_base: int) -> None:
    inputs = make_logits(LogitsCase(rows=12, keys=300, spread=0, seed=q_base), "cuda")
    for exponents, base in ((inputs.q_sf, q_base), (inputs.k_sf, k_base)):
        groups = exponents.unsqueeze(-1).view(torch.uint8)
        groups.copy_((groups.int() - 110 + base).to(torch.uint8))
    plain = replace(
        inputs, q_sf=shifted(inputs.q_sf, 127 - q_base), k_sf=shifted(inputs.k_sf, 127 - k_base)
    )
    want = twin(**plain.kwargs(), out_dtype=FP32).double() * 2.0 ** (q_base + k_base - 254)
    got = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32)
    valid = valid_columns(inputs)
    largest = want[valid].abs().max()
    assert bool(got[valid].isfinite().all()) and float(largest) > 2.0**-120
    assert float((got[valid].double() - want[valid]).abs().max() / largest) < 1e-4


def shifted(exponents: torch.Tensor, by: int) -> torch.Tensor:
    groups = exponents.unsqueeze(-1).view(torch.uint8).int() + by
    assert int(groups.min()) >= 0 and int(groups.max()) < 255
    return groups.to(torch.uint8).view(torch.int32).squeeze(-1)


@pytest.mark.parametrize("block", [0, 8])
def test_a_nan_exponent_makes_nan_of_its_own_key_or_row_only(block: int) -> None:
    case = LogitsCase(rows=20, keys=700, block=block, candidates=40 if block else 0, ranges="full")
    inputs = make_logits(case, "cuda")
    clean = mqa_logits_prefill(**inputs.dense(), out_dtype=FP32)
    inputs.k_sf.unsqueeze(-1).view(torch.uint8)[333, 2] = 255
    inputs.q_sf.unsqueeze(-1).view(torch.uint8)[7, 31, 0] = 255
    inputs.q_sf.unsqueeze(-1).view(torch.uint8)[8, 0, 3] = 255
    got = mqa_logits_prefill(**inputs.dense(), out_dtype=FP32)
    bad = torch.zeros_like(got, dtype=torch.bool)
    bad[:, 333] = True
    bad[7:9] = True
    assert bool(got[bad].isnan().all())
    check_bitwise("clean logits", got[~bad], clean[~bad])
    want = twin(**inputs.dense(), out_dtype=FP32)
    assert torch.equal(got.isnan(), want.isnan())
    if block:
        compact = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32, fill=True)
        want = twin(**inputs.kwargs(), out_dtype=FP32)
        assert torch.equal(compact.isnan(), want.isnan()) and bool(compact.isnan().any())


def test_groups_of_zeros_do_not_count_however_large_their_exponent() -> None:
    inputs = make_logits(LogitsCase(rows=16, keys=400, spread=4), "cuda")
    inputs.k[::3, 16:32] = 0
    inputs.k[1::3, 48:] = -120  # 0x88: two codes of minus zero
    inputs.k_sf.unsqueeze(-1).view(torch.uint8)[::3, 1] = 254
    inputs.k_sf.unsqueeze(-1).view(torch.uint8)[1::3, 3] = 254
    inputs.q[::2, :, :16] = 0
    inputs.q_sf.unsqueeze(-1).view(torch.uint8)[::2, :, 0] = 200
    got = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32)
    want = twin(**inputs.kwargs(), out_dtype=FP32)
    plain = replace(inputs, q_sf=inputs.q_sf.clone(), k_sf=inputs.k_sf.clone())
    plain.k_sf.unsqueeze(-1).view(torch.uint8)[::3, 1] = 110
    plain.k_sf.unsqueeze(-1).view(torch.uint8)[1::3, 3] = 110
    plain.q_sf.unsqueeze(-1).view(torch.uint8)[::2, :, 0] = 110
    check_dense(plain, got, want)


def test_keys_outside_a_rows_range_do_not_reach_it() -> None:
    case = LogitsCase(rows=64, keys=4000, ranges="odd", seed=12)
    inputs = make_logits(case, "cuda")
    want = mqa_logits_prefill(**inputs.kwargs(), fill=True)
    seen = torch.zeros(4000, dtype=torch.bool, device="cuda")
    for start, end in zip(inputs.ks.tolist(), inputs.ke.tolist(), strict=True):
        seen[start:end] = True
    assert bool((~seen).any())
    inputs.k_sf[~seen] = -1  # four NaN exponents
    check_bitwise("logits", mqa_logits_prefill(**inputs.kwargs(), fill=True), want)


def test_repeated_calls_give_the_same_bits() -> None:
    for case in (
        LogitsCase(rows=333, keys=9000),
        LogitsCase(rows=90, keys=9000, block=8, candidates=512, ranges="odd"),
    ):
        inputs = make_logits(case, "cuda")
        first = mqa_logits_prefill(**inputs.kwargs(), fill=True)
        for _ in range(20):
            check_bitwise("logits", mqa_logits_prefill(**inputs.kwargs(), fill=True), first)


def test_a_row_gives_the_same_bits_alone_and_among_others() -> None:
    inputs = make_logits(LogitsCase(rows=300, keys=5000, ranges="odd"), "cuda")
    together = mqa_logits_prefill(**inputs.kwargs(), fill=True)
    for row in (0, 5, 131, 299):
        part = slice(row, row + 1)
        alone = mqa_logits_prefill(**rows_of(inputs, part).kwargs(), fill=True)
        check_bitwise("logits", alone, together[part])


def rows_of(inputs: LogitsInputs, part: slice) -> LogitsInputs:
    return replace(
        inputs,
        q=inputs.q[part],
        q_sf=inputs.q_sf[part],
        weights=inputs.weights[part],
        ks=inputs.ks[part],
        ke=inputs.ke[part],
    )


@pytest.mark.parametrize("block", [0, 8])
def test_a_captured_graph_follows_its_inputs(block: int) -> None:
    case = LogitsCase(
        rows=150, keys=3000, ranges="ragged", block=block, candidates=100 * (block > 0)
    )
    inputs = make_logits(case, "cuda")
    mqa_logits_prefill(**inputs.kwargs())  # compiled and loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mqa_logits_prefill(**inputs.kwargs(), fill=True)
    for seed in (1, 2, 3):
        fresh = make_logits(replace(case, seed=seed), "cuda")
        for name, value in fresh.kwargs().items():
            if isinstance(value, torch.Tensor):
                getattr(inputs, name).copy_(value)
        captured.fill_(torch.nan)
        graph.replay()
        check_bitwise("logits", captured, mqa_logits_prefill(**fresh.kwargs(), fill=True))


def test_logits_beyond_four_gigabytes_land_in_their_rows() -> None:
    rows, keys, columns = 2100, 3000, 1 << 20  # 4.4 GB of bf16
    inputs = make_logits(LogitsCase(rows=rows, keys=keys, ranges="ragged"), "cuda")
    inputs.max_kv_len = columns
    got = mqa_logits_prefill(**inputs.kwargs())
    narrow = mqa_logits_prefill(**replace(inputs, max_kv_len=keys).kwargs())
    valid = valid_columns(replace(inputs, max_kv_len=keys))
    assert rows * columns * 2 > 2**32
    check_bitwise("logits", got[:, :keys][valid], narrow[valid])


def test_keys_beyond_two_gigabytes_are_read_where_they_are() -> None:
    keys = 2**25 + 5000  # 64 bytes each
    rng = torch.Generator("cuda").manual_seed(3)
    codes, exponents = packed(5000, spread=4, rng=rng)
    inputs = make_logits(LogitsCase(rows=9, keys=5000, ranges="ragged"), "cuda")
    near = replace(inputs, k=codes, k_sf=exponents)
    k = torch.zeros((keys, 64), dtype=torch.int8, device="cuda")
    k_sf = torch.zeros(keys, dtype=torch.int32, device="cuda")
    k[-5000:], k_sf[-5000:] = codes, exponents
    far = replace(near, k=k, k_sf=k_sf, ks=near.ks + 2**25, ke=near.ke + 2**25)
    want = mqa_logits_prefill(**near.kwargs(), fill=True)
    check_bitwise("logits", mqa_logits_prefill(**far.kwargs(), fill=True), want)


def test_seventy_thousand_rows_agree_at_both_ends() -> None:
    inputs = make_logits(LogitsCase(rows=70_000, keys=500, ranges="full"), "cuda")
    got = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32)
    for part in (slice(0, 100), slice(69_900, 70_000)):
        some = rows_of(inputs, part)
        check_dense(some, got[part], twin(**some.kwargs(), out_dtype=FP32))


def test_no_rows_and_no_keys_give_empty_logits() -> None:
    inputs = make_logits(LogitsCase(rows=4, keys=100), "cuda")
    assert mqa_logits_prefill(**rows_of(inputs, slice(0, 0)).kwargs()).shape == (0, 100)
    none = replace(inputs, k=inputs.k[:0], k_sf=inputs.k_sf[:0], ke=torch.zeros_like(inputs.ke))
    assert bool((mqa_logits_prefill(**none.kwargs()) == -torch.inf).all())


def test_what_no_kernel_serves_is_refused_and_the_twin_named() -> None:
    inputs = make_logits(LogitsCase(rows=4, keys=100, heads=72), "cuda")
    with pytest.raises(UnsupportedError, match=r"torch_ref\.mqa_logits_prefill"):
        mqa_logits_prefill(**inputs.kwargs())


def test_a_twin_with_one_code_changed_is_told_from_the_kernel() -> None:
    inputs = make_logits(LogitsCase(rows=30, keys=300), "cuda")
    got = mqa_logits_prefill(**inputs.kwargs(), out_dtype=FP32)
    inputs.k[17, 5] ^= 0x77
    with pytest.raises(AssertionError, match="allowed"):
        check_dense(inputs, got, twin(**inputs.kwargs(), out_dtype=FP32))
