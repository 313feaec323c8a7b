"""Indexer logits on FP4 tensors: dense, by candidate blocks, in place and in pages (F43)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from h20_ops import mqa_logits_paged, mqa_logits_prefill
from h20_ops.kv_cache import INDEX_MXFP4
from h20_ops.kv_cache.records import read_kv, write_kv

pytestmark = pytest.mark.torch

HEADS = 32


def packed(*shape: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes and exponents: int8 (..., 64), int32 (...)."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (*shape, 64), generator=generator).to(torch.int8)
    exponents = torch.randint(118, 131, (*shape, 4), generator=generator).to(torch.uint8)
    return codes, exponents.view(torch.int32).squeeze(-1)


def value_of(codes: torch.Tensor, exponents: torch.Tensor, channel: int) -> float:
    """One channel of one vector, by the format's text and not by the code under test."""
    byte = int(codes[channel // 2]) & 0xFF
    code = byte >> 4 if channel % 2 else byte & 15
    magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code & 7]
    exponent = (int(exponents) >> (8 * (channel // 32))) & 0xFF
    return (-magnitude if code & 8 else magnitude) * 2.0 ** (exponent - 127)


def by_hand(q: Any, q_sf: Any, k: Any, k_sf: Any, weights: torch.Tensor) -> float:
    key = [value_of(k, k_sf, channel) for channel in range(128)]
    total = 0.0
    for head in range(q.shape[0]):
        dot = sum(value_of(q[head], q_sf[head], channel) * key[channel] for channel in range(128))
        total += float(weights[head]) * max(dot, 0.0)
    return total


def prefill(rows: int, keys: int, seed: int = 0, heads: int = HEADS) -> dict[str, Any]:
    q, q_sf = packed(rows, heads, seed=seed)
    k, k_sf = packed(keys, seed=seed + 1)
    weights = torch.randn(rows, heads, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return {"q": q, "q_sf": q_sf, "k": k, "k_sf": k_sf, "weights": weights}


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("heads", [32, 64])
def test_a_column_is_the_key_at_that_distance_from_the_rows_start(heads: int) -> None:
    given = prefill(3, 40, heads=heads)
    ks, ke = int32(0, 7, 39), int32(12, 40, 39)
    logits = mqa_logits_prefill(
        **given, ks=ks, ke=ke, max_kv_len=64, out_dtype=torch.float32, fill=True
    )
    assert logits.shape == (3, 64) and logits.stride(0) * 4 % 1024 == 0
    for row, column in [(0, 0), (0, 11), (1, 0), (1, 32)]:
        key = int(ks[row]) + column
        want = by_hand(
            given["q"][row],
            given["q_sf"][row],
            given["k"][key],
            given["k_sf"][key],
            given["weights"][row],
        )
        assert float(logits[row, column]) == pytest.approx(want, rel=1e-5, abs=1e-4)
    assert bool((logits[0, 12:] == -torch.inf).all()) and bool((logits[2] == -torch.inf).all())
    rounded = mqa_logits_prefill(**given, ks=ks, ke=ke, max_kv_len=64)
    assert rounded.dtype == torch.bfloat16 and rounded.stride(0) * 2 % 1024 == 0
    assert torch.equal(rounded[1, :33], logits[1, :33].bfloat16())


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("starts", [(0, 0, 0, 0), (3, 8, 5, 0)])
def test_candidates_give_the_dense_logits_of_their_blocks_bit_for_bit(
    block: int, starts: tuple[int, ...]
) -> None:
    given = prefill(4, 300, seed=4)
    ks, lengths = int32(*starts), int32(203, 290, 16, 0)
    dense = mqa_logits_prefill(**given, ks=ks, ke=ks + lengths, max_kv_len=300)
    blocks = 12
    ids = torch.full((4, blocks), -1, dtype=torch.int32)
    generator = torch.Generator().manual_seed(block)
    for row, length in enumerate(lengths.tolist()):
        there = -(-length // block)
        if there:
            chosen = torch.randperm(there - 1, generator=generator)[: blocks - 1].tolist()
            kept = sorted({*chosen, there - 1})  # the last block always stays
            ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
    compact = mqa_logits_prefill(
        **given,
        ks=ks,
        ke=ks + lengths,
        max_kv_len=300,
        candidate_blocks=ids,
        candidate_block_size=block,
    )
    assert compact.shape == (4, blocks * block)
    seen = 0
    for row, length in enumerate(lengths.tolist()):
        for slot, kept_id in enumerate(ids[row].tolist()):
            for inside in range(block):
                column = kept_id * block + inside
                if kept_id >= 0 and column < length:
                    assert compact[row, slot * block + inside] == dense[row, column]
                    seen += 1
                else:
                    assert compact[row, slot * block + inside] == -torch.inf
    assert seen > 20 * block


def paged(page_size: int, lengths: list[int], seed: int) -> dict[str, Any]:
    """Rows of shuffled pages that lie far apart, page 0 unused, everything else poisoned."""
    generator = torch.Generator().manual_seed(seed)
    pages_each = [-(-length // page_size) for length in lengths]
    total = sum(pages_each) + 1
    stride = page_size * 68 + 384
    storage = torch.full((total, stride), 0xFF, dtype=torch.uint8)
    cache = storage.as_strided((total, page_size, 1, 68), (stride, 68, 68, 1))
    order = (torch.randperm(total - 1, generator=generator) + 1).int()
    tables = torch.full((len(lengths), max([*pages_each, 1]) + 2), 1 << 30, dtype=torch.int32)
    taken = 0
    for row, count in enumerate(pages_each):
        tables[row, :count] = order[taken : taken + count]
        taken += count
        positions = torch.arange(lengths[row])
        slots = tables[row, positions // page_size] * page_size + positions % page_size
        rows = torch.randn(lengths[row], 128, generator=generator)
        write_kv(cache, slots, rows, INDEX_MXFP4)
    q, q_sf = packed(len(lengths), HEADS, seed=seed)
    return {
        "q": q,
        "q_sf": q_sf,
        "cache": cache,
        "weights": torch.randn(len(lengths), HEADS, generator=generator).bfloat16(),
        "klen": int32(*lengths),
        "block_tables": tables,
    }


@pytest.mark.parametrize("page_size", [64, 128, 48])
def test_pages_give_what_the_same_keys_give_in_place(page_size: int) -> None:
    lengths = [1, 63, 64, 65, 200, 0, 129]
    given = paged(page_size, lengths, seed=page_size)
    logits = mqa_logits_paged(**given, max_kv_len=256, out_dtype=torch.float32)
    assert logits.shape == (7, 256) and not bool(logits.isnan().any())
    for row, length in enumerate(lengths):
        positions = torch.arange(length)
        tables = given["block_tables"][row].long()
        slots = tables[positions // page_size] * page_size + positions % page_size
        keys = read_kv(given["cache"], slots, INDEX_MXFP4)
        queries = read_query(given["q"][row], given["q_sf"][row])
        want = torch.relu(keys @ queries.t()) @ given["weights"][row].float()
        torch.testing.assert_close(logits[row, :length], want, rtol=1e-5, atol=1e-4)
        assert bool((logits[row, length:] == -torch.inf).all())


def read_query(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    return torch.tensor(
        [
            [value_of(codes[head], exponents[head], channel) for channel in range(128)]
            for head in range(codes.shape[0])
        ]
    )


def test_candidates_in_pages_are_the_dense_columns_bit_for_bit() -> None:
    given = paged(64, [200, 64, 0, 9], seed=11)
    dense = mqa_logits_paged(**given, max_kv_len=256)
    ids = torch.tensor(
        [[0, 3, 17, 24, -1, -1], [1, 2, 7, -1, -1, -1], [-1] * 6, [0, 1, -1, -1, -1, -1]],
        dtype=torch.int32,
    )
    compact = mqa_logits_paged(
        **given, max_kv_len=256, candidate_blocks=ids, candidate_block_size=8
    )
    assert compact.shape == (4, 48)
    for row, columns in enumerate([[0, 3, 17, 24], [1, 2, 7], [], [0]]):
        for slot, block in enumerate(columns):
            want = dense[row, block * 8 : block * 8 + 8]
            assert torch.equal(compact[row, slot * 8 : slot * 8 + 8], want)
    assert float(compact[3, 8]) == float(dense[3, 8]), "the ninth of nine entries"
    assert bool((compact[3, 9:] == -torch.inf).all())


def test_the_same_call_gives_the_same_bits() -> None:
    given = paged(128, [300, 17], seed=5)
    first = mqa_logits_paged(**given, max_kv_len=384)
    for _ in range(20):
        assert torch.equal(mqa_logits_paged(**given, max_kv_len=384), first)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("q", torch.zeros(2, HEADS, 128), "q: "),
        ("q_sf", torch.zeros(2, HEADS), "q_sf: torch.float32"),
        ("weights", torch.zeros(2, HEADS), "weights: torch.float32"),
        ("klen", torch.zeros(2, dtype=torch.int64), "klen: torch.int64"),
        ("block_tables", torch.zeros(3, 4, dtype=torch.int32), "want \\(2, 4\\)"),
        ("cache", torch.zeros(4, 64, 1, 132, dtype=torch.uint8), "68"),
        ("max_kv_len", 0, "max_kv_len: 0"),
        ("candidate_block_size", 4, "want 8 or 16"),
    ],
)
def test_what_breaks_the_contract_is_named(name: str, value: Any, says: str) -> None:
    given = paged(64, [5, 70], seed=1)
    given |= {"max_kv_len": 128, "candidate_blocks": torch.zeros(2, 1, dtype=torch.int32)}
    given |= {"candidate_block_size": 8, name: value}
    with pytest.raises(AssertionError, match=says):
        mqa_logits_paged(**given)


def test_a_candidate_block_may_not_cross_pages() -> None:
    given = paged(24, [20], seed=2)
    with pytest.raises(AssertionError, match="would cross pages of 24"):
        mqa_logits_paged(
            **given,
            max_kv_len=64,
            candidate_blocks=torch.zeros(1, 1, dtype=torch.int32),
            candidate_block_size=16,
        )
