"""Write and read KV-cache records by slot: plain-torch twins for every layout we know.

A cache is uint8, (num_pages, page_size, 1, bytes_per_token). Inside a page bytes are dense; pages
may be far apart (an engine keeps all layers of a block in one allocation), so stride(0) is free and
offsets are 64-bit. A slot is page * page_size + position in the page.
"""

from __future__ import annotations

import torch

from h20_ops.formats import GROUP_RULES, GroupRule, dequantise_groups, quantise_groups
from h20_ops.kv_cache.layouts import Field, KvLayout

# What the engines store; formats/group_cast.py holds the rules themselves.
_RULES = {
    ("e4m3", "ue8m0", 32): "fp8_32_ue8m0",
    ("e4m3", "ue8m0", 64): "fp8_64_ue8m0",
    ("e4m3", "fp32", 128): "fp8_128_fp32",
    ("e2m1", "e4m3", 16): "fp4_16_e4m3",
    ("e2m1", "ue8m0", 32): "fp4_32_ue8m0",
}


def rule_of(layout: KvLayout) -> GroupRule:
    """Return the scale rule with which the engines fill this layout."""
    if layout.name == "index_fp8_fp32":  # stored as a power of two, readers accept any fp32
        return GROUP_RULES["fp8_128_pow2"]
    key = (layout.values.encoding, layout.scales.encoding, layout.channels_per_scale)
    return GROUP_RULES[_RULES[key]]


def check_cache(cache: torch.Tensor, layout: KvLayout, name: str = "cache") -> None:
    """Assert that a tensor can be a cache of this layout."""
    width = layout.bytes_per_token
    assert cache.element_size() == 1, f"{name}: 1-byte elements expected, got {cache.dtype}"
    assert cache.ndim == 4 and cache.shape[2] == 1 and cache.shape[3] == width, (
        f"{name}: (pages, page_size, 1, {width}) expected for {layout}, got {tuple(cache.shape)}"
    )
    inner = (cache.stride(1), cache.stride(3))
    # Strides of length-1 dimensions mean nothing.
    page_dense = inner[0] == width or cache.shape[1] == 1
    assert page_dense and inner[1] == 1, (
        f"{name}: a dense page needs stride(1) {width} and stride(3) 1, got {cache.stride()}"
    )


def field_view(cache: torch.Tensor, field: Field) -> torch.Tensor:
    """View one field of every token: uint8, (num_pages, page_size, field.num_bytes).

    It shares memory with the cache, so writing to it writes the records.
    """
    num_pages, page_size = cache.shape[:2]
    return cache.view(torch.uint8).as_strided(
        (num_pages, page_size, field.num_bytes),
        (cache.stride(0), field.token_stride, 1),
        cache.storage_offset() + page_size * field.page_offset + field.offset,
    )


def write_kv(cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor, layout: KvLayout) -> None:
    """Quantise rows and store them at their slots, in place.

    Args:
        cache: uint8, (num_pages, page_size, 1, bytes_per_token), pages dense, stride(0) free.
        slots: int32 or int64, (num_rows,); -1 skips a row. Repeated slots keep any one of the rows.
        kv: floating, (num_rows, head_dim); bf16 is what the engines store from.
        layout: one of LAYOUTS.
    """
    check_cache(cache, layout)
    assert kv.shape == (slots.shape[0], layout.head_dim), (tuple(kv.shape), tuple(slots.shape))
    keep = slots >= 0
    rows, kept = kv[keep], slots[keep].long()
    _check_slots(kept, cache)
    page, slot = kept // cache.shape[1], kept % cache.shape[1]
    values = layout.values
    codes, scales = quantise_groups(rows[:, : values.num_channels], rule_of(layout))
    field_view(cache, values)[page, slot] = codes
    field_view(cache, layout.scales)[page, slot] = scales.contiguous().view(torch.uint8)
    if layout.plain is not None:
        first = layout.plain.first_channel
        tail = rows[:, first : first + layout.plain.num_channels].to(torch.bfloat16)
        field_view(cache, layout.plain)[page, slot] = tail.contiguous().view(torch.uint8)


def read_kv(cache: torch.Tensor, slots: torch.Tensor, layout: KvLayout) -> torch.Tensor:
    """Return the values of slots as fp32, (*slots.shape, head_dim); a negative slot gives zeros.

    Whatever lies in slots that are not asked for, NaN included, has no influence.

    Args:
        cache: as in write_kv.
        slots: int32 or int64, any shape.
        layout: one of LAYOUTS.
    """
    check_cache(cache, layout)
    flat = slots.reshape(-1).long()
    valid = flat >= 0
    safe = torch.where(valid, flat, torch.zeros_like(flat))
    _check_slots(safe, cache)
    page, slot = safe // cache.shape[1], safe % cache.shape[1]
    rule = rule_of(layout)
    codes = field_view(cache, layout.values)[page, slot]
    stored = field_view(cache, layout.scales)[page, slot]
    scales = stored.view(torch.float32) if layout.scales.encoding == "fp32" else stored
    out = dequantise_groups(codes, scales, rule)
    if layout.plain is not None:
        plain = field_view(cache, layout.plain)[page, slot].view(torch.bfloat16).float()
        out = torch.cat((out, plain), dim=-1)
    out = torch.where(valid.unsqueeze(-1), out, torch.zeros((), device=out.device))
    return out.reshape(*slots.shape, layout.head_dim)


def _check_slots(slots: torch.Tensor, cache: torch.Tensor) -> None:
    capacity = cache.shape[0] * cache.shape[1]
    highest = int(slots.max()) if slots.numel() else -1
    assert highest < capacity, f"slot {highest} is beyond the cache's {capacity} entries"
