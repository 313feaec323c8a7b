"""Sites that are computed: selections in entry numbers and in pages, index queries, window entries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dih20.engine_check.engine_sites import (
    chosen_in_pages,
    chosen_mask,
    compressed_entries,
    index_query,
    window_entries,
)
from h20_ops.formats import GROUP_RULES, dequantise_groups, quantise_groups

pytestmark = pytest.mark.torch


def test_a_mask_has_the_chosen_entries_and_no_other() -> None:
    ids = torch.tensor([[2, 0, -1], [4, 4, 1]])
    mask = chosen_mask(ids, 5, ids >= 0)
    assert mask.shape == (1, 2, 5)
    assert mask[0].nonzero().tolist() == [[0, 0], [0, 2], [1, 1], [1, 4]]


def test_slots_are_turned_back_through_the_page_table() -> None:
    pages = [7, 2, 0, 0]  # page 0 only fills the table
    slots = torch.tensor([[7 * 64 + 3, 2 * 64 + 1, -1]])
    assert chosen_in_pages(slots, pages, 64, 70)[0, 0].nonzero().flatten().tolist() == [3, 65]


def test_a_page_of_another_sequence_is_named() -> None:
    with pytest.raises(AssertionError, match="page 5 was read"):
        chosen_in_pages(torch.tensor([[5 * 64]]), [7, 2], 64, 70)


def test_an_index_query_is_what_its_codes_mean() -> None:
    rule = GROUP_RULES["fp4_32_ue8m0"]
    x = torch.randn(3, 8, 128, generator=torch.Generator().manual_seed(0))
    codes, scales = quantise_groups(x, rule)
    packed = scales.contiguous().view(torch.int32).squeeze(-1)
    got = index_query({}, (codes.view(torch.int8), packed), (0, 1, 2))
    assert torch.equal(got[0], dequantise_groups(codes, scales, rule))


def test_window_entries_of_decode_are_read_where_they_were_stored() -> None:
    rule = GROUP_RULES["fp8_32_ue8m0"]
    x = torch.randn(1, 512, generator=torch.Generator().manual_seed(0))
    codes, scales = quantise_groups(x, rule)
    cache = torch.zeros(4, 129, 1, 528, dtype=torch.uint8)
    cache[2, 5, 0] = torch.cat((codes[0], scales[0]))
    metadata = SimpleNamespace(slot_mapping_store_swa=torch.tensor([2 * 129 + 5, 0]))
    given = {"swa_cache": cache, "input_metadata": metadata}
    got = window_entries(given, (None, None), (700,))
    assert got is not None
    assert torch.equal(got[0], dequantise_groups(codes, scales, rule))


def test_compressed_entries_are_read_from_their_pages_record_by_record() -> None:
    rule = GROUP_RULES["fp4_16_e4m3"]
    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(0))
    codes, scales = quantise_groups(x, rule)
    cache = torch.zeros(4, 64, 1, 288, dtype=torch.uint8)
    cache[3, 5, 0], cache[1, 63, 0] = (torch.cat(both) for both in zip(codes, scales, strict=True))
    got = compressed_entries(cache, torch.tensor([3 * 64 + 5, 1 * 64 + 63]))
    assert torch.equal(got[0], dequantise_groups(codes, scales, rule))
