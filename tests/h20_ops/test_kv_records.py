"""KV-cache records: bytes written out by hand, strided pages, far offsets, poison."""

from __future__ import annotations

import pytest
import torch

import h20_ops
from h20_ops import torch_ref
from h20_ops.errors import DeviceError, UnsupportedError
from h20_ops.kv_cache import (
    INDEX_FP8_FP32,
    INDEX_MXFP4,
    INDEX_MXFP8,
    LAYOUTS,
    V4_FP8,
    V32_FP8,
    V41_FP4,
    V41_FP4_PAGE_SPLIT,
    V41_FP8,
    V41_FP8_PAGE_SPLIT,
    KvLayout,
    read_kv,
    write_kv,
)
from h20_ops.testing.byte_writer import write_288, write_528
from h20_ops.testing.cases_decode import POISON, empty_cache
from h20_ops.testing.compare import check_bitwise

pytestmark = pytest.mark.torch

B = 3  # page size of the examples; the token is in slot t = 1
# Channel 0 is 448 and channel 33 is -1 (FP8); 6 and 3 and -0.5 (FP4): what lies where, by hand.
FP8_ROW = {0: 448.0, 33: -1.0}
FP4_ROW = {0: 6.0, 1: -0.5, 33: -3.0}
GOLDEN: list[tuple[KvLayout, dict[int, float], dict[int, int]]] = [
    (
        V41_FP8,
        FP8_ROW,
        # 448 over 2^0; -1 over 2^-8 is -256 = 0xF8; an empty group: 1e-4/448 rounds up to 2^-22
        {528: 0x7E, 529: 0, 528 + 33: 0xF8, 528 + 512: 127, 528 + 513: 119, 528 + 527: 105},
    ),
    (
        V41_FP8_PAGE_SPLIT,
        FP8_ROW,
        {512: 0x7E, 512 + 33: 0xF8, B * 512 + 16: 127, B * 512 + 17: 119, B * 512 + 31: 105},
    ),
    (
        V41_FP4,
        FP4_ROW,
        # 6 is code 7, -0.5 code 9: 0x97; -3 over 0.5 is code 15 in the high nibble of byte 16
        {288: 0x97, 288 + 16: 0xF0, 288 + 256: 0x38, 288 + 258: 0x30, 288 + 287: 0x01},
    ),
    (
        V41_FP4_PAGE_SPLIT,
        FP4_ROW,
        {256: 0x97, 256 + 16: 0xF0, B * 256 + 32: 0x38, B * 256 + 34: 0x30, B * 256 + 63: 0x01},
    ),
    (
        V4_FP8,
        {0: 448.0, 65: -1.0, 448: 1.0, 511: -2.0},
        # bf16 1.0 is 0x3F80 and -2.0 is 0xC000, low byte first; seven scales of 64 channels
        {576: 0x7E, 576 + 65: 0xF8, 576 + 448: 0x80, 576 + 449: 0x3F, 576 + 575: 0xC0}
        | {B * 576 + 8: 127, B * 576 + 9: 119, B * 576 + 14: 105},
    ),
    (
        V32_FP8,
        {0: 448.0, 129: -224.0, 512: 1.0, 575: -2.0},
        # fp32 1.0 is 0x3F800000, 0.5 is 0x3F000000
        {656: 0x7E, 656 + 129: 0xFE, 656 + 515: 0x3F, 656 + 514: 0x80}
        | {656 + 519: 0x3F, 656 + 518: 0x00, 656 + 528: 0x80, 656 + 529: 0x3F, 656 + 655: 0xC0},
    ),
    (
        INDEX_FP8_FP32,
        {0: 448.0, 33: -1.0},
        {128: 0x7E, 128 + 33: 0xB8, B * 128 + 7: 0x3F, B * 128 + 6: 0x80},
    ),
    (
        INDEX_MXFP8,
        FP8_ROW,
        {128: 0x7E, 128 + 33: 0xF8, B * 128 + 4: 127, B * 128 + 5: 119, B * 128 + 7: 105},
    ),
    (
        INDEX_MXFP4,
        FP4_ROW,
        # -3 over 2^-1 is code 15, channel 33 in the high nibble of byte 16
        {64: 0x97, 64 + 16: 0xF0, B * 64 + 4: 127, B * 64 + 5: 126, B * 64 + 7: 1},
    ),
]


@pytest.mark.parametrize(("layout", "row", "golden"), GOLDEN, ids=lambda x: str(x)[:20])
def test_a_token_is_written_and_read_as_the_bytes_say(
    layout: KvLayout, row: dict[int, float], golden: dict[int, int]
) -> None:
    kv = torch.zeros((1, layout.head_dim), dtype=torch.bfloat16)
    for channel, value in row.items():
        kv[0, channel] = value
    cache = torch.zeros((2, B, 1, layout.bytes_per_token), dtype=torch.uint8)
    write_kv(cache, torch.tensor([B + 1]), kv, layout)
    page = cache[1].flatten()
    assert {byte: int(page[byte]) for byte in golden} == golden
    assert not cache[0].any()
    check_bitwise("read back", read_kv(cache, torch.tensor([B + 1]), layout), kv.float())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_every_byte_of_a_token_belongs_to_one_channel_or_scale(layout: KvLayout) -> None:
    owners: dict[int, tuple[str, int, int]] = {}
    for slot in range(B):
        for field in layout.fields:
            for unit in range(field.num_channels // field.channels_per_unit):
                channel = field.first_channel + unit * field.channels_per_unit
                start = field.byte_offset(B, slot, channel)
                for byte in range(start, start + field.unit_bytes):
                    assert byte not in owners, f"byte {byte}: {owners[byte]} and {field, slot}"
                    owners[byte] = (field.encoding, slot, unit)
    padding = B if layout is V4_FP8 else 0  # one unused byte per token
    assert len(owners) == B * layout.bytes_per_token - padding
    assert max(owners) < B * layout.bytes_per_token


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
@pytest.mark.parametrize("page_size", [1, 5, 64])
def test_pages_that_lie_apart_keep_their_neighbours_and_gaps(
    layout: KvLayout, page_size: int
) -> None:
    stride = page_size * layout.bytes_per_token + 1056
    cache = empty_cache(4, page_size, layout, stride)
    before = torch.as_strided(cache, (4 * stride,), (1,)).clone()
    slots = torch.tensor([3 * page_size, page_size - 1, -1], dtype=torch.int32)
    kv = torch.randn((3, layout.head_dim), generator=torch.Generator().manual_seed(1))
    kv = kv.to(torch.bfloat16)
    write_kv(cache, slots, kv, layout)
    after = torch.as_strided(cache, (4 * stride,), (1,))
    written = (after != before).nonzero().flatten()
    pages = set((written // stride).tolist())
    assert pages == {0, 3}
    assert int((written % stride).max()) < page_size * layout.bytes_per_token
    got = read_kv(cache, slots, layout)
    assert not got.isnan().any() and not got[2].any()
    # A cast moves an element by less than a quarter of its group's largest magnitude.
    assert float((got - kv.float())[:2].abs().max()) < 0.25 * float(kv.abs().max())


def test_the_records_of_an_independent_writer_are_read_exactly() -> None:
    kv = torch.randn((10, 512), generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    for layout, write in ((V41_FP8, write_528), (V41_FP4, write_288)):
        stride = 4 * layout.bytes_per_token + 96
        memory = bytearray(3 * stride)
        for token in range(10):
            write(memory, token // 4 * stride, token % 4, kv[token].double().tolist())
        width = layout.bytes_per_token
        theirs = torch.frombuffer(memory, dtype=torch.uint8).as_strided(
            (3, 4, 1, width), (stride, width, width, 1)
        )
        ours = empty_cache(3, 4, layout, stride)
        write_kv(ours, torch.arange(10), kv, layout)
        slots = torch.arange(10)
        check_bitwise(str(layout), read_kv(theirs, slots, layout), read_kv(ours, slots, layout))


def test_offsets_beyond_two_gigabytes_are_64_bit() -> None:
    stride = 3_128_928  # a state slot of the engine: page 687 starts beyond 2^31
    memory = torch.empty(700 * stride, dtype=torch.uint8)  # touched only where written
    cache = memory.as_strided((700, 134, 1, 528), (stride, 528, 528, 1))
    slot = torch.tensor([690 * 134 + 133], dtype=torch.int32)
    kv = torch.full((1, 512), 2.0, dtype=torch.bfloat16)
    write_kv(cache, slot, kv, V41_FP8)
    assert int(memory[690 * stride + 133 * 528]) == 0x78  # 2 over 2^-7 is 256
    assert read_kv(cache, slot, V41_FP8).equal(kv.float())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_poison_beside_a_token_does_not_leak(layout: KvLayout) -> None:
    cache = empty_cache(2, 4, layout)
    assert bool((cache == POISON).all())
    write_kv(cache, torch.tensor([5]), torch.ones((1, layout.head_dim)), layout)
    got = read_kv(cache, torch.tensor([[5, -1]]), layout)
    assert got.shape == (1, 2, layout.head_dim)
    assert not got.isnan().any()
    assert bool(read_kv(cache, torch.tensor([4]), layout).isnan().any())


def test_what_cannot_be_a_cache_is_refused_with_its_values() -> None:
    good = torch.zeros((2, 4, 1, 528), dtype=torch.uint8)
    one = torch.tensor([0])
    with pytest.raises(AssertionError, match=r"\(pages, page_size, 1, 288\) expected for v41_fp4"):
        read_kv(good, one, V41_FP4)
    with pytest.raises(AssertionError, match="1-byte elements expected, got torch"):
        read_kv(good.to(torch.bfloat16), one, V41_FP8)
    loose = torch.zeros((2, 4, 1, 544), dtype=torch.uint8)[..., :528]
    with pytest.raises(AssertionError, match=r"needs stride\(1\) 528"):
        read_kv(loose, one, V41_FP8)
    with pytest.raises(AssertionError, match="slot 8 is beyond the cache's 8 entries"):
        read_kv(good, torch.tensor([8]), V41_FP8)


def test_reading_with_the_wrong_528_byte_layout_gives_other_values() -> None:
    """Same shape, different bytes: the reason why the layout is an argument."""
    cache = torch.zeros((1, 4, 1, 528), dtype=torch.uint8)
    kv = torch.randn((4, 512), generator=torch.Generator().manual_seed(3))
    write_kv(cache, torch.arange(4), kv, V41_FP8)
    right = read_kv(cache, torch.arange(4), V41_FP8)
    wrong = read_kv(cache, torch.arange(4), V41_FP8_PAGE_SPLIT)
    assert float((right - kv).abs().max()) < 0.2
    assert not torch.allclose(right, wrong, equal_nan=True)


def test_a_layout_describes_where_its_bytes_are() -> None:
    assert V4_FP8.describe().splitlines() == [
        "v4_fp8: 584 bytes per token, 512 channels",
        "  values: e4m3, channels 0..447, byte t*576 + d//1",
        "  scales: ue8m0, channels 0..447, byte B*576 + t*8 + d//64",
        "  plain: bf16, channels 448..511, byte t*576 + 448 + 2*((d-448)//1)",
    ]


def test_a_cpu_tensor_or_a_foreign_layout_never_reaches_a_kernel() -> None:
    cache = torch.zeros((2, 4, 1, 528), dtype=torch.uint8)
    slots = torch.tensor([1], dtype=torch.int32)
    kv = torch.zeros((1, 512), dtype=torch.bfloat16)
    for call in (
        lambda: h20_ops.store_kv(cache, slots, kv, layout=V41_FP8),
        lambda: h20_ops.load_kv(cache, slots, layout=V41_FP8),
    ):
        with pytest.raises(DeviceError, match=r"(?s)found: tensors on cpu.*next: .*torch_ref"):
            call()
    with pytest.raises(UnsupportedError, match="layout v41_fp8_page_split"):
        h20_ops.load_kv(cache, slots, layout=V41_FP8_PAGE_SPLIT)
    with pytest.raises(AssertionError, match=r"slots: torch\.int32 expected, got torch\.int64"):
        h20_ops.store_kv(cache, slots.long(), kv, layout=V41_FP8)
    with pytest.raises(AssertionError, match=r"kv: shape \(1, 512\) expected, got \(2, 512\)"):
        torch_ref.store_kv(cache, slots, kv.repeat(2, 1), layout=V41_FP8)


def test_the_twins_of_store_and_load_are_the_records() -> None:
    cache = empty_cache(2, 4, V41_FP4)
    slots = torch.tensor([6, -1], dtype=torch.int32)
    kv = torch.full((2, 512), 3.0, dtype=torch.bfloat16)
    torch_ref.store_kv(cache, slots, kv, layout=V41_FP4)
    loaded = torch_ref.load_kv(cache, slots, layout=V41_FP4)
    assert loaded.dtype == torch.bfloat16
    assert loaded[0].equal(kv[0]) and not loaded[1].any()
