"""Which keys the engine lets attention read: integers of its own metadata, compared exactly.

A window of 127, a missing own key, an entry that is seen one position late, or 63 selected entries
move log-probs by less than rounding does; these integers have no rounding. One fresh sequence at a
time, eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from v41.attention import window_mask
from v41.config import LayerKind, ModelConfig


def prefill_faults(given: dict[str, Any], kind: LayerKind, config: ModelConfig) -> list[str]:
    """Judge what V4Attention._prefill_attention is given for a whole prompt.

    given: kv_swa_full_index, (rows, window), into [cached window | new rows]; kv_ca_index, (rows,
    selected), into the compressed entries from ks on; total_k_swa_cached; input_metadata.
    """
    metadata, rows = given["input_metadata"], given["q_b"].shape[0]
    positions = torch.arange(rows)
    faults = _differs("positions", metadata.positions, positions)
    reached = given["kv_swa_full_index"].long().cpu()
    inside = torch.where(reached >= 0, reached - given["total_k_swa_cached"], -1)
    if bool((inside[reached >= 0] < 0).any()):
        faults.append("rows of the cached window are read, the sequence has none")
    faults += _other_rows(
        "window rows", inside, window_mask(positions, positions, config.sliding_window)
    )
    if kind.ratio:
        key, visible = str(kind.ratio), (positions + 1) // kind.ratio
        first = metadata.ks[key][:rows].long().cpu()
        faults += _differs(f"ke - ks of {key}", metadata.ke[key][:rows].cpu() - first, visible)
        faults += _differs(f"klen of {key}", metadata.klen[key][:rows], visible)
        chosen = given["kv_ca_index"].long().cpu()
        chosen = torch.where(chosen >= 0, chosen - first.unsqueeze(1), -1)
        faults += _other_selection(chosen, visible, config.index_topk)
    return faults


def decode_faults(
    given: dict[str, Any], position: int, kind: LayerKind, config: ModelConfig
) -> list[str]:
    """Judge what V4Attention._decode_attention is given for the token at a position.

    given: kv_swa_index, (rows, window), slots of the ring of the sequence's state; kv_ca_index,
    (rows, selected), slots of its pages; kv_cache; input_metadata. Row 0 is the sequence's.
    """
    metadata, cache = given["input_metadata"], given["kv_cache"]
    here = torch.tensor([position])
    faults = _differs("positions", metadata.positions[:1], here)
    faults += _differs("context_lens", metadata.context_lens[:1], here + 1)
    ring = cache.swa_cache.shape[1]
    stored = int(metadata.slot_mapping_store_swa[0])
    start = stored // ring * ring
    faults += _differs("slot_mapping_store_swa", torch.tensor([stored]), start + here % ring)
    window = torch.arange(max(position + 1 - config.sliding_window, 0), position + 1)
    expected = torch.zeros(1, ring, dtype=torch.bool)
    expected[0, window % ring] = True
    slots = given["kv_swa_index"][:1].long().cpu()
    faults += _other_rows("window slots", torch.where(slots >= 0, slots - start, -1), expected)
    if kind.ratio:
        key, visible = str(kind.ratio), (here + 1) // kind.ratio
        faults += _differs(f"klen of {key}", metadata.klen[key][:1], visible)
        size = cache.ca_cache.shape[1]
        pages = metadata.block_tables[0, : position // (size * kind.ratio) + 1].tolist()
        new = int(visible) - 1 if int(here + 1) % kind.ratio == 0 else None
        slot = -1 if new is None else pages[new // size] * size + new % size
        faults += _differs(
            f"slot_mapping_store_ca of {key}",
            metadata.slot_mapping_store_ca[key][:1],
            torch.tensor([slot]),
        )
        chosen = _entries(given["kv_ca_index"][0].tolist(), pages, size)
        faults += _other_selection(torch.tensor([chosen]), visible, config.index_topk)
    return faults


def _entries(slots: Sequence[int], pages: Sequence[int], size: int) -> list[int]:
    """Turn physical slots into entry numbers; one of a page that is not the sequence's stays far off."""
    place = {page: number for number, page in reversed(list(enumerate(pages)))}
    elsewhere = len(pages)
    return [
        -1 if slot < 0 else place.get(slot // size, elsewhere) * size + slot % size
        for slot in slots
    ]


def _differs(name: str, got: torch.Tensor, expected: torch.Tensor) -> list[str]:
    got, expected = got.cpu().long(), expected.long()
    if got.shape != expected.shape:
        return [f"{name} has {tuple(got.shape)}, expected {tuple(expected.shape)}"]
    rows = (got != expected).nonzero().flatten().tolist()
    if not rows:
        return []
    row = rows[0]
    return [
        f"{name} is {int(got[row])} in row {row}, expected {int(expected[row])}; {len(rows)} rows"
    ]


def _other_rows(name: str, read: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """read: int64, (rows, width), -1 for none.    expected: bool, (rows, keys)."""
    found = _times(read, expected.shape[1])
    wrong = (found != expected.long()).any(dim=-1) | (read >= expected.shape[1]).any(dim=-1)
    rows = wrong.nonzero().flatten().tolist()
    if not rows:
        return []
    row = rows[0]
    got, wanted = read[row][read[row] >= 0], expected[row].nonzero().flatten()
    return [f"{name} of row {row} are {_shown(got)}, expected {_shown(wanted)}; {len(rows)} rows"]


def _other_selection(chosen: torch.Tensor, visible: torch.Tensor, topk: int) -> list[str]:
    """Which entries are best is no integer matter; how many, and that each may be seen, is."""
    entries = int(visible.max())
    found = _times(chosen, entries)
    count, expected = (chosen >= 0).sum(dim=-1), visible.clamp_max(topk)
    unseen = (chosen >= visible.unsqueeze(1)).any(dim=-1)
    wrong = (count != expected) | unseen | (found > 1).any(dim=-1)
    rows = wrong.nonzero().flatten().tolist()
    if not rows:
        return []
    row = rows[0]
    wanted = f"{int(expected[row])} of the entries below {int(visible[row])}"
    got = _shown(chosen[row][chosen[row] >= 0])
    return [f"row {row} selects {got}, expected {wanted}; {len(rows)} rows"]


def _times(read: torch.Tensor, size: int) -> torch.Tensor:
    """Count how often each of `size` keys is read; others are left out."""
    valid = (read >= 0) & (read < size)
    found = torch.zeros(read.shape[0], size + 1, dtype=torch.long)
    found.scatter_add_(1, torch.where(valid, read, size), valid.long())
    return found[:, :size]


def _shown(keys: torch.Tensor) -> str:
    if not len(keys):
        return "none"
    keys = keys.sort().values
    return f"{len(keys)} from {int(keys[0])} to {int(keys[-1])}"
