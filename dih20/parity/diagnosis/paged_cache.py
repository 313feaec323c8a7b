"""The engine's compressed cache as bytes, rebuilt from a dump: what a wrong reader would have seen.

One allocation holds a row per block of 128 tokens. A row has, for every kv source in layer order, a
page of index keys (all values, then all scales) and a page of entries (one record per entry), each
padded to 32 bytes; the row's length is a multiple of lcm(128, record). Block 0 is never used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from h20_ops.formats import GROUP_RULES, quantise_groups

BLOCK_TOKENS = 128
_ENTRY_RULE = GROUP_RULES["fp4_16_e4m3"]
_KEY_RULE = GROUP_RULES["fp4_32_ue8m0"]


@dataclass(frozen=True, kw_only=True)
class SourcePages:
    """One kv source's entries: (entries, d) and index keys (entries, di), fp32, already rounded."""

    ratio: int
    entries: torch.Tensor
    keys: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class View:
    """Where one source's pages of entries lie.

    offset: bytes from the start of block 0 to its page; stride: bytes from block to block.
    page_size: entries per page. dim: channels per entry.
    """

    memory: torch.Tensor
    offset: int
    stride: int
    page_size: int
    dim: int

    @property
    def record(self) -> int:
        """Bytes of an FP4 record: two values a byte, one e4m3 scale per 16."""
        return self.dim // 2 + self.dim // 16

    @property
    def fp8_record(self) -> int:
        """Bytes of an FP8 record: one value a byte, one ue8m0 scale per 32."""
        return self.dim + self.dim // 32

    def gather(self, starts: torch.Tensor, length: int) -> torch.Tensor:
        """Give bytes (rows, length) from each start; beyond the allocation is zero."""
        reach = starts.unsqueeze(-1) + torch.arange(length)
        inside = reach < self.memory.numel()
        found = self.memory[reach.clamp_max(self.memory.numel() - 1)]
        return torch.where(inside, found, torch.zeros_like(found))


def build(
    sources: Mapping[int, SourcePages], first_block: int, block_tokens: int = BLOCK_TOKENS
) -> dict[int, View]:
    """Lay the sources out as the engine does and give each layer's view.

    first_block: the block that holds the first tokens; later ones follow. At least 1.
    """
    tokens = max(pages.ratio * pages.entries.shape[0] for pages in sources.values())
    num_blocks = first_block + -(-tokens // block_tokens)
    places, length = {}, 0
    for layer in sorted(sources):
        pages = sources[layer]
        page_size = block_tokens // pages.ratio
        dim, key_dim = pages.entries.shape[1], pages.keys.shape[1]
        length = _pad(length + page_size * (key_dim // 2 + key_dim // 32), 32)
        places[layer] = (length, page_size)
        length = _pad(length + page_size * (dim // 2 + dim // 16), 32)
    record = dim // 2 + dim // 16
    stride = _pad(length, math.lcm(128, record))
    memory = torch.zeros(num_blocks * stride, dtype=torch.uint8)
    views = {}
    for layer, (offset, page_size) in places.items():
        pages = sources[layer]
        view = View(
            memory=memory, offset=offset, stride=stride, page_size=page_size,
            dim=pages.entries.shape[1],
        )  # fmt: skip
        _write(view, pages, first_block)
        views[layer] = view
    return views


def _write(view: View, pages: SourcePages, first_block: int) -> None:
    slots = torch.arange(pages.entries.shape[0])
    block, slot = first_block + slots // view.page_size, slots % view.page_size
    codes, scales = quantise_groups(pages.entries, _ENTRY_RULE)
    records = torch.cat((codes, scales), dim=-1)
    _scatter(view.memory, block * view.stride + view.offset + slot * view.record, records)
    codes, scales = quantise_groups(pages.keys, _KEY_RULE)
    page_bytes = view.page_size * (codes.shape[1] + scales.shape[1])
    start = block * view.stride + view.offset - _pad(page_bytes, 32)
    _scatter(view.memory, start + slot * codes.shape[1], codes)
    behind = start + view.page_size * codes.shape[1]
    _scatter(view.memory, behind + slot * scales.shape[1], scales)


def _scatter(memory: torch.Tensor, starts: torch.Tensor, rows: torch.Tensor) -> None:
    memory[starts.unsqueeze(-1) + torch.arange(rows.shape[1])] = rows


def _pad(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
