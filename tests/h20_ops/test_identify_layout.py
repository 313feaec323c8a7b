"""identify_layout names what a store writes, and says what is wrong with a store it cannot name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from h20_ops.errors import LayoutError
from h20_ops.kv_cache import LAYOUTS, V41_FP4, V41_FP8, V41_FP8_PAGE_SPLIT, KvLayout, write_kv
from h20_ops.kv_cache.identify import identify_layout, infer_byte_map
from h20_ops.kv_cache.records import field_view
from h20_ops.testing.byte_writer import write_288, write_528

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_each_layout_is_named_from_its_bytes(layout: KvLayout) -> None:
    named = identify_layout(
        lambda cache, slots, kv: write_kv(cache, slots, kv, layout),
        bytes_per_token=layout.bytes_per_token,
        head_dim=layout.head_dim,
        page_size=5,
    )
    assert named == layout


@pytest.mark.parametrize(("width", "layout"), [(528, V41_FP8), (288, V41_FP4)])
def test_a_writer_that_shares_no_code_with_us_is_named_too(width: int, layout: KvLayout) -> None:
    write = {528: write_528, 288: write_288}[width]

    def store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        page = bytearray(cache.shape[1] * width)
        for row, slot in enumerate(slots.tolist()):
            assert slot // cache.shape[1] == 1
            write(page, 0, slot % cache.shape[1], kv[row].double().tolist())
        data = torch.frombuffer(page, dtype=torch.uint8)
        cache[1] = data.view(cache.shape[1], 1, width)

    assert identify_layout(store, bytes_per_token=width, page_size=2) == layout


def test_the_two_528_byte_layouts_are_told_apart() -> None:
    def split_store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        write_kv(cache, slots, kv, V41_FP8_PAGE_SPLIT)

    assert identify_layout(split_store, bytes_per_token=528) == V41_FP8_PAGE_SPLIT
    found = infer_byte_map(split_store, 528, 512, page_size=3)
    assert found.sign_bits[(1, 0)] == 512 * 8 + 7
    assert found.scales[(1, 32, 32)] == (3 * 512 + 16 + 1,)


def test_swapped_nibbles_are_named_with_the_first_wrong_channel() -> None:
    def store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        write_kv(cache, slots, kv.unflatten(1, (-1, 2)).flip(2).flatten(1), V41_FP4)

    with pytest.raises(LayoutError, match=r"sign of \(slot 0, channel 0\) is in bit 7 of byte 0"):
        identify_layout(store, bytes_per_token=288)


def test_scales_in_the_wrong_order_are_named() -> None:
    def store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        write_kv(cache, slots, kv, V41_FP8)
        view = field_view(cache, V41_FP8.scales)
        view[1] = view[1].flip(1).clone()

    with pytest.raises(LayoutError, match=r"scale of \(slot 0, channels 0\.\.31\) is in bytes"):
        identify_layout(store, bytes_per_token=528)


def test_a_store_that_takes_pages_for_dense_is_caught() -> None:
    def store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        size, width = cache.shape[1], cache.shape[3]
        dense = cache.as_strided((3, size, 1, width), (size * width, width, width, 1))
        write_kv(dense, slots, kv, V41_FP8)

    with pytest.raises(LayoutError, match="where page 1 would be if pages were dense"):
        identify_layout(store, bytes_per_token=528)


def test_a_store_that_forgets_channels_is_caught() -> None:
    def store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        kept = kv.clone()
        kept[:, 100] = 1.0
        write_kv(cache, slots, kept, V41_FP8)

    with pytest.raises(LayoutError, match=r"\(slot 0, channel 100\) is in nowhere"):
        identify_layout(store, bytes_per_token=528)


def test_an_unknown_size_is_refused() -> None:
    def store(cache: Tensor, slots: Tensor, kv: Tensor) -> None:
        cache[1, :, 0, :512] = kv.to(torch.float8_e4m3fn).view(torch.uint8)

    with pytest.raises(LayoutError, match="no known layout of 520 bytes"):
        identify_layout(store, bytes_per_token=520)
