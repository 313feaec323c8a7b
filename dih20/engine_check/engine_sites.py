"""Sites of DeepInfer that no call hands over as they are: cache entries, index vectors, selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dih20.engine_check.tolerant_capture import Computed
from h20_ops.formats import GROUP_RULES, dequantise_groups
from v41.config import ModelConfig

_WINDOW = GROUP_RULES["fp8_32_ue8m0"]
_INDEX = GROUP_RULES["fp4_32_ue8m0"]
_COMPRESSED = GROUP_RULES["fp4_16_e4m3"]


def computed_sites(config: ModelConfig) -> list[Computed]:
    """Give them for the patched engine, one sequence at a time."""
    attention = "model.layers.{layer}.self_attn"
    sites = [
        Computed(
            site="layers.{layer}.attn.window_kv",
            at=attention,
            call="_prepare_swa_kv",
            make=window_entries,
        )
    ]
    for index, kind in enumerate(config.layers):
        if kind.owns_index:
            at = f"model.layers.{index}.self_attn.index_attn"
            name = f"layers.{index}.attn"
            ratio = kind.ratio
            if kind.owns_kv:
                sites += _stored(name, at, ratio)
            sites += [
                Computed(site=f"{name}.index_query", at=at, call="_quantize_q", make=index_query),
                Computed(site=f"{name}.chosen", at=at, call="_topk_prefill", make=_chosen(ratio)),
                Computed(site=f"{name}.chosen", at=at, call="_topk_decode", make=_chosen(ratio)),
            ]
    return sites


def _stored(name: str, at: str, ratio: int) -> list[Computed]:
    """Give what a layer that owns entries stores: it has an index of its own beside its compressor."""
    compressor = at.replace(".index_attn", ".PackedWkv")
    return [
        Computed(
            site=f"{name}.compressed_kv",
            at=compressor,
            call="forward_store_kv_cache",
            make=_read_back(ratio, "kv_cache", compressed_entries),
        ),
        Computed(
            site=f"{name}.index_key",
            at=at,
            call="store_index_kv",
            make=_read_back(ratio, "index_k_cache", index_entries),
        ),
    ]


def window_entries(
    given: dict[str, Any], result: Any, positions: Sequence[int]
) -> torch.Tensor | None:
    """Give (1, rows, 512): what prefill hands over, or the record that decode has just stored."""
    entries = result[0]
    if entries is not None:
        return entries.squeeze(1).unsqueeze(0)
    cache, slots = (
        given["swa_cache"],
        given["input_metadata"].slot_mapping_store_swa[: len(positions)],
    )
    ring = cache.shape[1]
    records = cache[(slots // ring).long(), (slots % ring).long(), 0]
    dim = records.shape[-1] * _WINDOW.group // (_WINDOW.group + 1)
    codes, scales = records[:, :dim].cpu(), records[:, dim:].cpu()
    return dequantise_groups(codes.contiguous(), scales.contiguous(), _WINDOW).unsqueeze(0)


def index_query(given: dict[str, Any], result: Any, positions: Sequence[int]) -> torch.Tensor:
    """Give (1, rows, heads, 128) of FP4 codes, int8 (rows, heads, 64), and packed exponents, int32."""
    codes, packed = result
    packed = packed.reshape(codes.shape[0], codes.shape[1], -1).contiguous()
    scales = packed.view(torch.uint8).cpu()
    return dequantise_groups(codes.view(torch.uint8).cpu().contiguous(), scales, _INDEX).unsqueeze(
        0
    )


def _read_back(ratio: int, cache: str, entries: Callable[..., torch.Tensor]) -> Any:
    """Give what a call has just stored for the sequence, read from the pages where it should be."""

    def make(given: dict[str, Any], result: Any, positions: Sequence[int]) -> torch.Tensor:
        slots = given["input_metadata"].slot_mapping_store_ca[str(ratio)]
        new = (positions[-1] + 1) // ratio - positions[0] // ratio
        return entries(given[cache], slots[slots >= 0][:new].long())

    return make


def compressed_entries(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Give (1, slots, 512) of what was stored in slots; each record is its codes, then its scales.

    Args:
        cache: uint8, (pages, page size, 1, 288).    slots: int64, physical.
    """
    size, record = cache.shape[1], cache.shape[-1]
    width = record * _COMPRESSED.group // (_COMPRESSED.group + 2)  # bytes of codes, two in one
    records = cache[slots // size, slots % size, 0].cpu()
    codes, scales = records[:, :width].contiguous(), records[:, width:].contiguous()
    return dequantise_groups(codes, scales, _COMPRESSED).unsqueeze(0)


def index_entries(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Give (1, slots, 128) of what was stored in slots; a page's codes stand before its exponents.

    Args:
        cache: uint8, (pages, page size, 1, 68).    slots: int64, physical.
    """
    size, record = cache.shape[1], cache.shape[-1]
    width = record * _INDEX.group // (_INDEX.group + 2)  # bytes of codes, two in one
    pages = cache[slots // size].flatten(1).cpu()
    rows, inside = torch.arange(len(slots)), (slots % size).cpu()
    codes = pages[:, : size * width].unflatten(1, (size, width))[rows, inside]
    scales = pages[:, size * width :].unflatten(1, (size, record - width))[rows, inside]
    return dequantise_groups(codes.contiguous(), scales.contiguous(), _INDEX).unsqueeze(0)


def _chosen(ratio: int) -> Any:
    def make(given: dict[str, Any], result: Any, positions: Sequence[int]) -> torch.Tensor:
        entries = (positions[-1] + 1) // ratio
        metadata = given["input_metadata"]
        if metadata.is_prompt:
            first = metadata.ks[str(ratio)][: len(positions)].long().cpu().unsqueeze(1)
            return chosen_mask(result.long().cpu() - first, entries, result.cpu() >= 0)
        pages = metadata.block_tables[0].tolist()
        return chosen_in_pages(result.long().cpu(), pages, given["kv_cache"].shape[1], entries)

    return make


def chosen_mask(ids: torch.Tensor, entries: int, valid: torch.Tensor) -> torch.Tensor:
    """Give bool (1, rows, entries) of entry numbers (rows, chosen), where valid."""
    mask = torch.zeros(ids.shape[0], entries + 1, dtype=torch.bool)
    mask.scatter_(1, torch.where(valid, ids, entries), True)
    return mask[:, :entries].unsqueeze(0)


def chosen_in_pages(
    slots: torch.Tensor, pages: Sequence[int], page_size: int, entries: int
) -> torch.Tensor:
    """The same of physical slots (rows, chosen), -1 for none, through a sequence's page table."""
    place = {page: number for number, page in reversed(list(enumerate(pages)))}
    ids = torch.full_like(slots, -1)
    for page in slots[slots >= 0].div(page_size, rounding_mode="floor").unique().tolist():
        assert page in place, f"page {page} was read, the sequence has {list(pages)[:16]}"
        inside = (slots >= 0) & (slots.div(page_size, rounding_mode="floor") == page)
        ids = torch.where(inside, place[page] * page_size + slots % page_size, ids)
    return chosen_mask(ids, entries, ids >= 0)
