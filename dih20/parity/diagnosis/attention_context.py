"""Signatures at the attention's context: masks, sinks, and readers of the paged cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

import torch

from dih20.parity.diagnosis.hypothesis import Hypothesis, InputMissing
from dih20.parity.diagnosis.inputs import Inputs
from dih20.parity.diagnosis.paged_cache import BLOCK_TOKENS, SourcePages, View, build
from h20_ops.formats import decode_e2m1, decode_e4m3, decode_ue8m0
from h20_ops.formats.e2m1 import unpack_nibbles
from v41 import attention

# Block tables tried: contiguous, from one of these blocks, with blocks of the engine's size or of a
# small one, which short prompts can fill.
FIRST_BLOCKS = (1, 2, 3, 4)
BLOCK_SIZES = (BLOCK_TOKENS, 16)


def clean_context(inputs: Inputs) -> torch.Tensor:
    """Give the context that B's own queries and entries lead to."""
    return _attend(inputs, _compressed(inputs), inputs.weight(f"{inputs.prefix}.attn_sink"))


def context_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give the known wrong contexts."""
    sink = inputs.weight(f"{inputs.prefix}.attn_sink")
    q = inputs.here("q")
    yield Hypothesis(
        cause="all-keys-masked",
        detail="the context is exactly zero",
        predict=lambda: torch.zeros_like(q),
        exact=True,
    )
    sinks: list[tuple[str, str, torch.Tensor]] = [
        ("sink-missing", "no sink in the denominator", torch.full_like(sink, -torch.inf)),
        ("sink-log-base", "2^sink instead of e^sink", sink * math.log(2.0)),
        ("sink-log-base", "sink scaled by log2(e) once too often", sink / math.log(2.0)),
    ]
    for cause, detail, wrong in sinks:

        def with_sink(wrong: torch.Tensor = wrong) -> torch.Tensor:
            return _attend(inputs, _compressed(inputs), wrong)

        yield Hypothesis(cause=cause, detail=detail, predict=with_sink)
    if inputs.kind.ratio and inputs.finding.phase == "decode":
        yield from _readers(inputs, sink)


def _readers(inputs: Inputs, sink: torch.Tensor) -> Iterator[Hypothesis]:
    """Give what wrong readers of the paged compressed cache lead to, in decode."""
    source = inputs.kind.kv_source
    assert source is not None, inputs.site
    chosen = _chosen(inputs)[0, 0]
    try:
        sources = _sources(inputs)
    except InputMissing:
        return
    views = {
        (first_block, size): build(sources, first_block, size)[source]
        for first_block, size in product(FIRST_BLOCKS, BLOCK_SIZES)
    }
    slots = torch.arange(chosen.numel())
    for (cause, detail, read), ((first_block, size), view) in product(READERS, views.items()):

        def predict(
            view: View = view, first_block: int = first_block, read: Reader = read
        ) -> torch.Tensor:
            entries = read(view, slots, first_block)
            kept = torch.where(chosen.unsqueeze(-1), entries, torch.zeros_like(entries))
            return _attend(inputs, kept.unsqueeze(0), sink)

        where = f"{detail}; blocks of {size} tokens from {first_block}"
        yield Hypothesis(cause=cause, detail=where, predict=predict)


def _sources(inputs: Inputs) -> dict[int, SourcePages]:
    found = {}
    for layer in inputs.config.kv_source_layer_ids:
        entries, keys = _stored(inputs, layer, "compressed_kv"), _stored(inputs, layer, "index_key")
        ratio = inputs.config.layer(layer).ratio
        found[layer] = SourcePages(ratio=ratio, entries=entries[0], keys=keys[0])
    return found


def _stored(inputs: Inputs, layer: int, leaf: str) -> torch.Tensor:
    """Give what a source has stored when this layer reads: later layers lag by this step."""
    assert inputs.layer is not None
    if layer <= inputs.layer:
        return inputs.history(layer, leaf)
    site = f"layers.{layer}.attn.{leaf}"
    return torch.cat([inputs.at(site, step) for step in range(inputs.step)], dim=1)


def _starts(view: View, slots: torch.Tensor, first_block: int) -> torch.Tensor:
    block, slot = first_block + slots // view.page_size, slots % view.page_size
    return block * view.stride + view.offset + slot * view.record


def _decode_fp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = decode_e2m1(unpack_nibbles(codes)).unflatten(-1, (-1, 16))
    return (values * decode_e4m3(scales).unsqueeze(-1)).flatten(-2)


def _decode_fp8(data: torch.Tensor, dim: int) -> torch.Tensor:
    values = decode_e4m3(data[:, :dim].contiguous()).unflatten(-1, (-1, 32))
    return (values * decode_ue8m0(data[:, dim:].contiguous()).unsqueeze(-1)).flatten(-2)


def _flat(view: View, slots: torch.Tensor, first_block: int) -> torch.Tensor:
    """Rows at slot * record from the layer's first page, as if pages were dense."""
    flat = first_block * view.page_size + slots
    data = view.gather(view.offset + flat * view.record, view.record)
    return _decode_fp4(data[:, : view.dim // 2], data[:, view.dim // 2 :].contiguous())


def _wide(view: View, slots: torch.Tensor, first_block: int) -> torch.Tensor:
    """FP8 records in pages of the right stride."""
    block, slot = first_block + slots // view.page_size, slots % view.page_size
    starts = block * view.stride + view.offset + slot * view.fp8_record
    return _decode_fp8(view.gather(starts, view.fp8_record), view.dim)


def _wide_flat(view: View, slots: torch.Tensor, first_block: int) -> torch.Tensor:
    """FP8 values sought in each FP4 record's place: the stride is right, the width is not."""
    starts = _starts(view, slots, first_block)
    return _decode_fp8(view.gather(starts, view.fp8_record), view.dim)


def _split(view: View, slots: torch.Tensor, first_block: int) -> torch.Tensor:
    """A page's values first, its scales behind all of them."""
    block, slot = first_block + slots // view.page_size, slots % view.page_size
    page = block * view.stride + view.offset
    half, scales = view.dim // 2, view.dim // 16
    codes = view.gather(page + slot * half, half)
    behind = page + view.page_size * half + slot * scales
    return _decode_fp4(codes, view.gather(behind, scales))


def _swapped(view: View, slots: torch.Tensor, first_block: int) -> torch.Tensor:
    """The high nibble as the even channel."""
    data = view.gather(_starts(view, slots, first_block), view.record)
    codes = data[:, : view.dim // 2]
    return _decode_fp4((codes << 4) | (codes >> 4), data[:, view.dim // 2 :].contiguous())


Reader = Callable[[View, torch.Tensor, int], torch.Tensor]
READERS: tuple[tuple[str, str, Reader], ...] = (
    ("page-stride-ignored", "rows at slot * record from the first page", _flat),
    ("record-width-confused", "FP8 records in the FP4 cache's pages", _wide),
    ("record-width-confused", "FP8 values at the FP4 records' places", _wide_flat),
    ("page-split-as-interleaved", "scales sought behind the page's values", _split),
    ("nibble-order", "high nibble of the cache taken first", _swapped),
)


def _compressed(inputs: Inputs) -> torch.Tensor | None:
    source = inputs.kind.kv_source
    return None if source is None else inputs.history(source, "compressed_kv")


def _chosen(inputs: Inputs) -> torch.Tensor:
    source = inputs.kind.index_source
    assert source is not None, inputs.site
    return inputs.at(f"layers.{source}.attn.chosen")


def _attend(inputs: Inputs, compressed: torch.Tensor | None, sink: torch.Tensor) -> torch.Tensor:
    assert inputs.layer is not None, inputs.site
    positions, window = inputs.positions, inputs.config.sliding_window
    keys = inputs.history(inputs.layer, "window_kv")
    key_positions = torch.arange(keys.shape[1])
    mask = attention.window_mask(positions, key_positions, window).expand(keys.shape[0], -1, -1)
    if compressed is not None:
        keys = torch.cat((keys, compressed), dim=1)
        mask = torch.cat((mask, _chosen(inputs)), dim=-1)
    return attention.attend(inputs.here("q"), keys, mask, sink, inputs.numerics)
