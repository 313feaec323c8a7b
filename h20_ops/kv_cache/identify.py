"""Find out which layout a store function writes, from the bytes it leaves in memory.

Every coordinate (slot, channel) is given a number, and the number is stored bit by bit: once per
bit, with the sign of each value telling whether its number has that bit. Magnitudes never change,
so scales do not either, and each memory bit that moves spells the number of the coordinate whose
sign it is. Scales are found the same way, by magnitudes that are the same over 16 channels. What
comes out is a map from coordinates to bytes; it is then compared with the layouts we know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from h20_ops.errors import LayoutError
from h20_ops.kv_cache.layouts import LAYOUTS, KvLayout

Store = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
GRANULE = 16  # the narrowest group any known layout scales together

_UNTOUCHED = 0xA5
_SIGN_BIT = {"e4m3": (0, 7), "bf16": (1, 7)}  # byte of the unit, bit of the byte


@dataclass(frozen=True, kw_only=True)
class ByteMap:
    """Where things are in a page, as byte offsets from its start.

    sign_bits: (slot, channel) -> byte * 8 + bit of the value's sign.
    scales: (slot, first channel, number of channels) -> bytes that change with their magnitude.
    """

    sign_bits: dict[tuple[int, int], int]
    scales: dict[tuple[int, int, int], tuple[int, ...]]


def identify_layout(
    store: Store,
    *,
    bytes_per_token: int,
    head_dim: int = 512,
    page_size: int = 6,
    device: torch.device | str = "cpu",
) -> KvLayout:
    """Return the known layout that `store` writes.

        identify_layout(lambda c, s, kv: write_kv(c, s, kv, V41_FP8), bytes_per_token=528)

    Args:
        store: store(cache, slots, kv) writes bf16 kv (page_size, head_dim) at int32 slots
            (page_size,) of a uint8 cache (3, page_size, 1, bytes_per_token) whose pages lie apart.
    Raises:
        LayoutError: bytes outside the page were written (stride(0) ignored), or the bytes fit no
            known layout; the first coordinate that differs from the closest one is named.
    """
    found = infer_byte_map(store, bytes_per_token, head_dim, page_size, device)
    candidates = [
        layout
        for layout in LAYOUTS.values()
        if (layout.bytes_per_token, layout.head_dim) == (bytes_per_token, head_dim)
    ]
    faults = {layout.name: _first_fault(found, layout, page_size) for layout in candidates}
    for layout in candidates:
        if faults[layout.name] is None:
            return layout
    differences = "; ".join(f"not {name}: {fault}" for name, fault in faults.items())
    raise LayoutError(
        f"a store whose bytes fit no known layout of {bytes_per_token} bytes and {head_dim} "
        f"channels ({differences or 'none has that size'})",
        f"one of {', '.join(layout.name for layout in candidates) or 'the known layouts'}",
        "compare infer_byte_map(store, ...) with h20_ops/kv_cache/layouts.py",
    )


def infer_byte_map(
    store: Store,
    bytes_per_token: int,
    head_dim: int,
    page_size: int,
    device: torch.device | str = "cpu",
) -> ByteMap:
    """Return where `store` puts signs and scales, knowing nothing but the record's size."""
    coordinate = torch.arange(page_size * head_dim).view(page_size, head_dim)
    granule = torch.arange(page_size).unsqueeze(1) * head_dim + torch.arange(head_dim) // GRANULE

    def page_after(kv: torch.Tensor) -> torch.Tensor:
        return _stored_page(store, kv, bytes_per_token, page_size, device)

    ones = torch.ones(page_size, head_dim)
    plus, minus, loud = page_after(ones), page_after(-ones), page_after(4 * ones)
    moving = (plus ^ minus).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
    signs = torch.zeros(plus.numel(), 8, dtype=torch.int64)
    for bit in range((page_size * head_dim - 1).bit_length()):
        has_bit = (coordinate >> bit & 1).bool()
        page = page_after(torch.where(has_bit, -ones, ones))
        flipped = (page ^ plus).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
        signs += flipped.long() << bit
    sign_bits = {
        divmod(int(signs[byte, bit]), head_dim): int(byte) * 8 + int(bit)
        for byte, bit in moving.nonzero().tolist()
    }
    # A byte that carries a sign is a value; the others that follow the magnitude are scales.
    scale_bytes = ((plus != loud) & ~moving.any(dim=1)).nonzero().flatten().tolist()
    scale_bytes = [b for b in scale_bytes if not _is_low_half(b, moving)]
    with_bit = torch.zeros(plus.numel(), dtype=torch.int64)
    without_bit = torch.zeros_like(with_bit)
    for bit in range(int(granule.max()).bit_length()):
        has_bit = (granule >> bit & 1).bool()
        page = page_after(torch.where(has_bit, 4 * ones, ones))
        with_bit |= (page == loud).long() << bit
        page = page_after(torch.where(has_bit, ones, 4 * ones))
        without_bit |= (page == loud).long() << bit
    scales: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for byte in scale_bytes:
        mixed = int(with_bit[byte] & without_bit[byte])  # bits that differ inside the group
        slot, first = divmod(int(with_bit[byte]) & ~mixed, head_dim)
        key = (slot, first * GRANULE, (mixed + 1) * GRANULE)
        scales[key] = (*scales.get(key, ()), byte)
    return ByteMap(sign_bits=sign_bits, scales=scales)


def _stored_page(
    store: Store,
    kv: torch.Tensor,
    bytes_per_token: int,
    page_size: int,
    device: torch.device | str,
) -> torch.Tensor:
    """Store kv in the middle one of three pages that lie apart; return the bytes of that page."""
    page_bytes = page_size * bytes_per_token
    stride = page_bytes + 1056  # engines leave gaps of multiples of 32 bytes
    memory = torch.full((3 * stride,), _UNTOUCHED, dtype=torch.uint8, device=device)
    cache = memory.as_strided(
        (3, page_size, 1, bytes_per_token), (stride, bytes_per_token, bytes_per_token, 1)
    )
    slots = torch.arange(page_size, 2 * page_size, dtype=torch.int32, device=device)
    store(cache, slots, kv.to(torch.bfloat16).to(device))
    after = memory.cpu()
    outside = after.clone()
    outside[stride : stride + page_bytes] = _UNTOUCHED
    written = outside != _UNTOUCHED
    if bool(written.any()):
        first = int(written.to(torch.uint8).argmax())
        dense = " (where page 1 would be if pages were dense)" if first < 2 * page_bytes else ""
        raise LayoutError(
            f"a store that wrote byte {first}{dense}, outside the page its slots are in",
            f"only bytes {stride}..{stride + page_bytes - 1}, stride(0) being {stride}",
            "make the store use page * stride(0), in 64 bits",
        )
    return after[stride : stride + page_bytes]


def _is_low_half(byte: int, moving: torch.Tensor) -> bool:
    """True for the low byte of a bf16 value, whose sign is in the next byte's highest bit."""
    return False if byte + 1 >= moving.shape[0] else bool(moving[byte + 1, 7]) and byte % 2 == 0


def _first_fault(found: ByteMap, layout: KvLayout, page_size: int) -> str | None:
    """Return how the found map first differs from a layout's, None if it does not."""
    for slot in range(page_size):
        for channel in range(layout.head_dim):
            want, got = (
                _sign_bit(layout, page_size, slot, channel),
                found.sign_bits.get((slot, channel)),
            )
            if got != want:
                where = "nowhere" if got is None else f"bit {got % 8} of byte {got // 8}"
                return (
                    f"the sign of (slot {slot}, channel {channel}) is in {where} of the page, "
                    f"not bit {want % 8} of byte {want // 8}"
                )
    scales, width = layout.scales, layout.channels_per_scale
    last_byte = 3 if scales.encoding == "fp32" else 0  # the byte that holds the high exponent bits
    for slot in range(page_size):
        for first in range(0, scales.num_channels, width):
            start = scales.byte_offset(page_size, slot, first) + last_byte
            got_bytes = found.scales.get((slot, first, width))
            if got_bytes != (start,):
                return (
                    f"the scale of (slot {slot}, channels {first}..{first + width - 1}) is in bytes "
                    f"{got_bytes}, not {(start,)}"
                )
    return None


def _sign_bit(layout: KvLayout, page_size: int, slot: int, channel: int) -> int:
    field = layout.values
    if channel >= field.num_channels:
        assert layout.plain is not None, f"{layout} has no channel {channel}"
        field = layout.plain
    unit = field.byte_offset(page_size, slot, channel)
    if field.encoding == "e2m1":
        return unit * 8 + (3 if channel % 2 == 0 else 7)
    byte, bit = _SIGN_BIT[field.encoding]
    return (unit + byte) * 8 + bit
