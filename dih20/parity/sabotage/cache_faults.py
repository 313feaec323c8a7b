"""Faults in reading the compressed cache in decode: pages, widths, layouts, nibbles."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch

from dih20.parity.diagnosis.paged_cache import SourcePages, View, build
from dih20.parity.sabotage.attention_faults import BrokenSite, with_site
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import DECODE, Fault, Injector, phase_of_rows
from h20_ops.formats import decode_e2m1, decode_e4m3, decode_ue8m0
from v41.attention_site import AttentionSite
from v41.cache import Rows

# Gives the entry at one slot: (the cache's bytes as numbers of each page, page, slot) -> fp32 (d,).
Reader = Callable[[View, int, int], torch.Tensor]


def _bytes(view: View, start: int, count: int) -> torch.Tensor:
    return torch.nn.functional.pad(view.memory[start : start + count], (0, count))[:count]


def _e2m1(packed: torch.Tensor, low_first: bool = True) -> torch.Tensor:
    low, high = decode_e2m1(packed & 15), decode_e2m1(packed >> 4)
    pair = (low, high) if low_first else (high, low)
    return torch.stack(pair, dim=-1).flatten()


def _fp4(codes: torch.Tensor, scales: torch.Tensor, low_first: bool = True) -> torch.Tensor:
    scale = decode_e4m3(scales.contiguous()).repeat_interleave(16)
    return _e2m1(codes, low_first) * scale


def read_right(view: View, page: int, slot: int) -> torch.Tensor:
    record = _bytes(view, page * view.stride + view.offset + slot * view.record, view.record)
    return _fp4(record[: view.dim // 2], record[view.dim // 2 :])


def _read_dense(view: View, page: int, slot: int) -> torch.Tensor:
    """Address records as if pages followed each other without a gap."""
    index = page * view.page_size + slot
    record = _bytes(view, view.offset + index * view.record, view.record)
    return _fp4(record[: view.dim // 2], record[view.dim // 2 :])


def _read_wide(view: View, page: int, slot: int) -> torch.Tensor:
    """Take the cache for FP8 records with ue8m0 scales per 32."""
    width = view.dim + view.dim // 32
    record = _bytes(view, page * view.stride + view.offset + slot * width, width)
    scale = decode_ue8m0(record[view.dim :].contiguous()).repeat_interleave(32)
    return decode_e4m3(record[: view.dim].contiguous()) * scale


def _read_split(view: View, page: int, slot: int) -> torch.Tensor:
    """Seek a page's scales behind all of its values."""
    start, half, scales = page * view.stride + view.offset, view.dim // 2, view.dim // 16
    codes = _bytes(view, start + slot * half, half)
    return _fp4(codes, _bytes(view, start + view.page_size * half + slot * scales, scales))


def _read_swapped(view: View, page: int, slot: int) -> torch.Tensor:
    record = _bytes(view, page * view.stride + view.offset + slot * view.record, view.record)
    return _fp4(record[: view.dim // 2], record[view.dim // 2 :], low_first=False)


def _reader_fault(cause: str, detail: str, read: Reader) -> Injector:
    def inject(base: Base, random: Random) -> Fault:
        layer = random.choice(base.layers("full", "reuse", "reindex"))
        first_block = random.randint(1, 3)

        class Site(BrokenSite):
            def _compressed(
                self, x: torch.Tensor, q_low: torch.Tensor, rows: Rows
            ) -> tuple[torch.Tensor, torch.Tensor]:
                entries, chosen = AttentionSite._compressed(self, x, q_low, rows)
                if phase_of_rows(rows) != "decode":
                    return entries, chosen
                source = self.kind.kv_source
                assert source is not None, self.site
                view = build(pages(rows), first_block, base.block_tokens)[source]
                found = entries.clone()
                for index in chosen[0, 0].nonzero().flatten().tolist():
                    page, slot = divmod(index, view.page_size)
                    found[0, index] = read(view, first_block + page, slot)
                return found, chosen

        return Fault(
            cause=cause, site=f"layers.{layer}.attn.context", phases=DECODE,
            detail=f"{detail}; blocks from {first_block}", build=with_site(base, layer, Site),
        )  # fmt: skip

    return inject


def pages(rows: Rows) -> dict[int, SourcePages]:
    """Give what the kv sources hold now."""
    found = {}
    for layer, state in enumerate(rows.cache.layers):
        if state.compressed is not None and state.index_keys is not None:
            tokens = rows.cache.tokens
            assert tokens is not None, "decode follows a prompt"
            ratio = round(tokens.shape[1] / state.compressed.shape[1])
            found[layer] = SourcePages(
                ratio=ratio, entries=state.compressed[0], keys=state.index_keys[0]
            )
    return found


PAGE_STRIDE = _reader_fault("page-stride-ignored", "rows at slot * record", _read_dense)
WIDTH = _reader_fault("record-width-confused", "FP4 records read as FP8 ones", _read_wide)
PAGE_SPLIT = _reader_fault("page-split-as-interleaved", "scales behind the page", _read_split)
CACHE_NIBBLES = _reader_fault("nibble-order", "high nibble of the cache first", _read_swapped)
