"""Cases of mqa_logits_paged, shared by its tests and its benchmarks, and what its logits may be off by.

Every byte of a cache that no block table lists is poison: code 0xFF, and exponent 0xFF, NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch

from h20_ops.formats import decode_e2m1, decode_ue8m0, unpack_nibbles
from h20_ops.kv_cache import INDEX_MXFP4
from h20_ops.kv_cache.records import field_view
from h20_ops.testing.seeds import generator_for

RECORD = 68
POISON = 0xFF


@dataclass(frozen=True, kw_only=True)
class PagedCase:
    """One call. The id of a case names every field that is not the default.

    page_stride: bytes from page to page, 0 for dense pages. lengths: of the rows; shorter lists
    repeat. exponents, query_exponents: ranges drawn from, both ends included. candidates: slots of each row's list,
    0 for the dense form.
    """

    rows: int
    max_kv_len: int
    lengths: tuple[int, ...]
    heads: int = 32
    page_size: int = 64
    page_stride: int = 0
    first_page: int = 1
    exponents: tuple[int, int] = (118, 130)
    query_exponents: tuple[int, int] = (118, 130)
    candidates: int = 0
    block: int = 8
    shared_rows: int = 1  # neighbouring rows with one block table, as those of a request

    @property
    def id(self) -> str:
        named = [f"{self.rows}x{self.max_kv_len}"]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown = ".".join(map(str, value[:4])) if isinstance(value, tuple) else value
                named.append(f"{field.name}={shown}")
        return "-".join(named)


def paged_cases() -> Iterator[PagedCase]:
    """Sizes and layouts around every boundary of pages, tiles and shares."""
    edges = (1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 0, 255, 639, 640, 641)
    for page_size, heads in itertools.product((64, 128), (32, 64)):
        yield PagedCase(rows=33, max_kv_len=700, lengths=edges, page_size=page_size, heads=heads)
    stride = 114_048
    for page_size in (64, 128):
        yield PagedCase(
            rows=5,
            max_kv_len=16_384,
            lengths=(16_384, 16_383, 1, 9000, 4097),
            page_size=page_size,
            page_stride=stride,
        )
    # pages that hold no whole eights of keys, or begin anywhere
    for page_size, page_stride in ((48, 0), (1, 0), (3, 0), (13, 13 * 68 + 4), (64, 64 * 68 + 4)):
        yield PagedCase(
            rows=9,
            max_kv_len=300,
            lengths=(300, 1, 0, 299, 64, 65),
            page_size=page_size,
            page_stride=page_stride,
        )
    for heads in (1, 8, 12, 20, 33):
        yield PagedCase(rows=3, max_kv_len=257, lengths=(257, 100, 256), heads=heads)
    for rows in (1, 2, 131, 132, 133, 1500):
        yield PagedCase(rows=rows, max_kv_len=1300, lengths=(1300, 5, 0, 0, 700, 1, 1299))
    yield PagedCase(rows=30, max_kv_len=4096, lengths=(4000, 3990, 10), shared_rows=6)
    yield PagedCase(rows=2, max_kv_len=65_543, lengths=(65_543, 16_387))
    for exponents, query_exponents in (
        ((0, 14), (235, 249)),
        ((240, 254), (0, 14)),
        ((113, 127), (113, 127)),
        ((0, 0), (254, 254)),
    ):
        yield PagedCase(
            rows=4,
            max_kv_len=600,
            lengths=(600, 577),
            exponents=exponents,
            query_exponents=query_exponents,
        )


def candidate_cases() -> Iterator[PagedCase]:
    """The same against lists of blocks."""
    for block, page_size, heads in itertools.product((8, 16), (64, 128), (32, 64)):
        yield PagedCase(
            rows=21,
            max_kv_len=9000,
            lengths=(9000, 8999, 8, 0, 1, 4097, 130, 129),
            candidates=128,
            block=block,
            page_size=page_size,
            heads=heads,
        )
    for candidates in (1, 4, 12, 2048, 4096):
        yield PagedCase(
            rows=6,
            max_kv_len=40_000,
            lengths=(40_000, 33_000, 16_385, 100),
            candidates=candidates,
            page_stride=114_048,
            page_size=128,
        )
    yield PagedCase(
        rows=5, max_kv_len=700, lengths=(700, 650), candidates=40, page_stride=64 * 68 + 4
    )
    yield PagedCase(rows=5, max_kv_len=700, lengths=(700, 650), candidates=17, page_size=24)


def far_cases() -> Iterator[PagedCase]:
    """Pages beyond 2^31 bytes from the cache's start: for a GPU, not for CI."""
    yield PagedCase(
        rows=3,
        max_kv_len=2000,
        lengths=(2000, 129, 1),
        page_stride=114_048,
        page_size=128,
        first_page=18_900,
    )


def make_paged(case: PagedCase, device: str) -> dict[str, Any]:
    """Keyword arguments of one call, drawn by the case's id."""
    rng = generator_for(case.id, device)
    lengths = torch.tensor(
        [case.lengths[row % len(case.lengths)] for row in range(case.rows)], device=device
    )
    groups = -(-case.rows // case.shared_rows)
    pages_each = max(1, -(-case.max_kv_len // case.page_size))
    dense = case.page_size * RECORD
    stride = case.page_stride or dense
    count = case.first_page + groups * pages_each
    storage = torch.full((count * stride,), POISON, dtype=torch.uint8, device=device)
    shape = (count, case.page_size, 1, RECORD)
    cache = storage.as_strided(shape, (stride, RECORD, RECORD, 1))
    order = torch.randperm(groups * pages_each, generator=rng, device=device)
    tables = (order + case.first_page).view(groups, pages_each)
    tables = tables.repeat_interleave(case.shared_rows, 0)[: case.rows]
    first = torch.arange(pages_each, device=device) * case.page_size
    listed = first < lengths.unsqueeze(1)
    used = tables[listed].unique()
    codes = field_view(cache, INDEX_MXFP4.values)
    scales = field_view(cache, INDEX_MXFP4.scales)
    for part in used.split(1 << 14):
        picked = (part.numel(), case.page_size)
        codes[part] = _bytes((*picked, 64), rng)
        scales[part] = _exponents((*picked, 4), case.exponents, rng)
    # what lies behind a length is not for reading
    tables = torch.where(listed, tables, torch.full_like(tables, (1 << 31) - 1))
    weights = torch.randn((case.rows, -(-case.heads // 8) * 8), generator=rng, device=device)
    given = {
        "q": _bytes((case.rows, case.heads, 64), rng).view(torch.int8),
        "q_sf": _exponents((case.rows, case.heads, 4), case.query_exponents, rng)
        .view(torch.int32)
        .squeeze(-1),
        "cache": cache,
        "weights": weights.bfloat16()[:, : case.heads],
        "klen": lengths.int(),
        "block_tables": tables.int(),
        "max_kv_len": case.max_kv_len,
    }
    if case.candidates:
        given["candidate_blocks"] = make_candidates(case, lengths, rng)
        given["candidate_block_size"] = case.block
    return given


def make_candidates(case: PagedCase, lengths: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """int32 (rows, candidates): ascending blocks of each row, its last one among them; then -1."""
    rows = torch.full((case.rows, case.candidates), -1, dtype=torch.int32, device=rng.device)
    for row, length in enumerate(lengths.tolist()):
        there = -(-length // case.block)
        if there == 0:
            continue
        kept = min(there, case.candidates)
        chosen = torch.randperm(there - 1, generator=rng, device=rng.device)[: kept - 1]
        rows[row, : kept - 1] = chosen.sort().values.int()
        rows[row, kept - 1] = there - 1
    return rows


def _bytes(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng, device=rng.device)


def _exponents(
    shape: tuple[int, ...], within: tuple[int, int], rng: torch.Generator
) -> torch.Tensor:
    low, high = within
    return torch.randint(low, high + 1, shape, dtype=torch.uint8, generator=rng, device=rng.device)


# What a logit may be off by. Codes, exponents and their products are exact; only sums lose anything.
#
# The tensor cores add FP8 products by aligning them to the largest and keeping about 13 bits below it,
# 32 products at a time. An unlucky key can lose most of that in each of its terms, so an element is
# bounded loosely: by 2^-10 of the sum of all terms' magnitudes, weights included (`scale_of`); the
# worst of millions measured on an H200 was 2^-11.7. The whole of a row, where such losses average out,
# is bounded tightly: fp32 rows measured 2^-26 at most. bf16 adds half a step, 2^-9, on top.
SUM_ERROR = 2.0**-10
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
NORMALISED = {torch.bfloat16: 1e-5, torch.float32: 2e-7}  # of rows of LONG columns or more
LONG = 64
SMALLEST = 2.0**-126  # below it fp32 and bf16 lose bits


def scale_of(given: dict[str, Any], row: int) -> torch.Tensor:
    """fp64 (length,): sum over heads and channels of |weight * q * k|, for each entry of a row."""
    return _sums(given, row, magnitudes=True)


def exact_logits(given: dict[str, Any], row: int) -> torch.Tensor:
    """fp64 (length,): a row's dense logits; nothing overflows and no zero meets an infinity."""
    return _sums(given, row, magnitudes=False)


def _sums(given: dict[str, Any], row: int, *, magnitudes: bool) -> torch.Tensor:
    length = min(int(given["klen"][row]), given["max_kv_len"])
    cache, page_size = given["cache"], given["cache"].shape[1]
    at = torch.arange(length, device=cache.device)
    page = given["block_tables"][row].long()[at // page_size]
    slot = at % page_size
    codes = field_view(cache, INDEX_MXFP4.values)[page, slot]
    scales = field_view(cache, INDEX_MXFP4.scales)[page, slot]
    keys = _decode64(codes, scales)
    exponents = given["q_sf"][row].contiguous().view(torch.uint8).view(-1, 4)
    queries = _decode64(given["q"][row].view(torch.uint8), exponents)
    weights = given["weights"][row].double()
    if magnitudes:
        return (keys.abs() @ queries.abs().t()) @ weights.abs()
    return (keys @ queries.t()).relu() @ weights


def _decode64(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    values = decode_e2m1(unpack_nibbles(codes.contiguous())).double()
    scales = decode_ue8m0(exponents.contiguous()).double()
    return (values.unflatten(-1, (-1, 32)) * scales.unsqueeze(-1)).flatten(-2)


def check_row(name: str, got: torch.Tensor, given: dict[str, Any], row: int) -> str:
    """Assert that a row's dense logits are as close as they can be; return how close they came."""
    want = exact_logits(given, row)
    seen = got[row, : want.numel()].double()
    sums = SUM_ERROR * scale_of(given, row)
    allowed = sums + ROUNDING[got.dtype] * want.abs() + SMALLEST
    error = (seen - want).abs()
    wrong = ~(error <= allowed)
    if bool(wrong.any()):
        at = int(wrong.to(torch.uint8).argmax())
        raise AssertionError(
            f"{name}, row {row} of {want.numel()} columns: got {float(seen[at])!r}, want "
            f"{float(want[at])!r} at column {at}, allowed {float(allowed[at]):.3e}; "
            f"{int(wrong.sum())} columns are out"
        )
    norm = float((want * want + seen * seen).sum())
    difference = 1 - 2 * float((want * seen).sum()) / norm if norm else 0.0
    if want.numel() >= LONG:
        limit = NORMALISED[got.dtype]
        assert difference <= limit, f"{name}, row {row}: normalised {difference:.3e} > {limit}"
    worst = float((error / allowed.clamp_min(1e-300)).max()) if want.numel() else 0.0
    return f"{name}, row {row}: worst at {worst:.2f} of its bound, normalised {difference:.1e}"


def speed_inputs(
    *,
    batch: int,
    context: int,
    heads: int,
    sets: int,
    page_size: int,
    page_stride: int = 0,
    candidates: int = 0,
    block: int = 8,
    share_pages: bool = False,
) -> list[dict[str, Any]]:
    """Keyword arguments of `sets` calls on shuffled pages of one cache, all rows of full length.

    share_pages: the sets list different blocks of the same pages, instead of pages of their own.
    """
    rng = torch.Generator("cuda").manual_seed(1)
    pages = context // page_size
    caches = 1 if share_pages else sets
    count = caches * batch * pages
    stride = page_stride or page_size * RECORD
    storage = torch.empty(count * stride, dtype=torch.uint8, device="cuda")
    for part in storage.split(1 << 28):
        part.random_(0, 256, generator=rng)
    shape = (count, page_size, 1, RECORD)
    cache = storage.as_strided(shape, (stride, RECORD, RECORD, 1))
    field_view(cache, INDEX_MXFP4.scales).random_(120, 129, generator=rng)
    order = torch.randperm(count, generator=rng, device="cuda").int().view(caches, batch, pages)
    calls = []
    for number in range(sets):
        given = {
            "q": _bytes((batch, heads, 64), rng).view(torch.int8),
            "q_sf": _exponents((batch, heads, 4), (120, 128), rng).view(torch.int32).squeeze(-1),
            "cache": cache,
            "weights": torch.randn((batch, heads), device="cuda", generator=rng).bfloat16(),
            "klen": torch.full((batch,), context, dtype=torch.int32, device="cuda"),
            "block_tables": order[number % caches],
            "max_kv_len": context,
        }
        if candidates:
            rank = torch.rand((batch, context // block), device="cuda", generator=rng)
            rank[:, -1] = 2.0  # the last block is always kept
            kept = rank.topk(candidates, dim=1).indices.sort(dim=1).values
            given |= {"candidate_blocks": kept.int(), "candidate_block_size": block}
        calls.append(given)
    return calls
