"""Compare choices: selected entries with their score margin, experts, integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dih20.parity.compare.dense import unflatten

Details = dict[str, float | int | str]


@dataclass(frozen=True, kw_only=True)
class ChoiceDistance:
    """value: share of rows that differ in more than ties; remark: in words."""

    value: float
    details: Details
    coordinate: tuple[int, ...]
    remark: str


def as_mask(chosen: torch.Tensor, num_entries: int) -> torch.Tensor:
    """Give a selection as bool (..., entries); it may come as indices (..., k) with -1 for none."""
    if chosen.dtype == torch.bool:
        return chosen
    valid = (chosen >= 0) & (chosen < num_entries)
    index = torch.where(valid, chosen.long(), num_entries)
    mask = torch.zeros(*chosen.shape[:-1], num_entries + 1, dtype=torch.bool)
    return mask.scatter(-1, index, True)[..., :num_entries]


def selection_distance(
    a: torch.Tensor,
    b: torch.Tensor,
    scores: torch.Tensor | None,
    *,
    near_tie: float,
) -> ChoiceDistance:
    """Compare two selections row by row; order does not matter.

    A row whose sets differ only in entries of equal score is tie-equivalent. The margin of a row is
    how much better the best entry that B lost scores than the worst one that B took instead.

    Args:
        a, b: bool, (sequences, rows, entries).
        scores: fp32, the same shape, A's; None when the dump has none.
        near_tie: margins up to this share of the scores' spread are counted apart.
    """
    lost, taken = a & ~b, b & ~a
    differs = (lost | taken).any(dim=-1)
    rows = int(differs.sum())
    details: Details = {"rows_differ": rows, "rows": differs.numel()}
    if not rows:
        return ChoiceDistance(value=0.0, details=details, coordinate=(), remark="")
    wrong = differs
    remark = "the chosen sets differ; there are no scores to tell ties by"
    if scores is not None:
        best_lost = scores.masked_fill(~lost, -torch.inf).amax(dim=-1)
        worst_taken = scores.masked_fill(~taken, torch.inf).amin(dim=-1)
        same_size = lost.sum(dim=-1) == taken.sum(dim=-1)
        margin = torch.where(same_size, best_lost - worst_taken, torch.inf)
        tied = differs & (margin == 0)
        wrong = differs & ~tied
        spread = float(scores[scores.isfinite()].std()) if scores.numel() > 1 else 0.0
        near = wrong & (margin.abs() <= near_tie * spread)
        margins = margin[wrong]
        details |= {
            "rows_tied": int(tied.sum()),
            "rows_near_tie": int(near.sum()),
            "rows_other_size": int((differs & ~same_size).sum()),
            "score_margin": float(margins.max()) if margins.numel() else 0.0,
        }
        remark = _selection_remark(int(wrong.sum()), int(near.sum()))
    where = wrong if bool(wrong.any()) else differs
    row = unflatten(int(where.flatten().to(torch.uint8).argmax()), tuple(where.shape))
    entry = int((lost | taken)[row].to(torch.uint8).argmax())
    value = float(wrong.float().mean())
    return ChoiceDistance(value=value, details=details, coordinate=(*row, entry), remark=remark)


def _selection_remark(wrong: int, near: int) -> str:
    if not wrong:
        return "tie-equivalent: the chosen sets differ in entries of equal score only"
    if near == wrong:
        return "every row that differs is a near tie: small errors of the scores decide it"
    return "entries with clearly higher scores were not chosen"


def expert_distance(
    a: torch.Tensor, b: torch.Tensor, scores: torch.Tensor | None = None, *, tie: float = 0.0
) -> ChoiceDistance:
    """Compare expert ids (tokens, k) as sets; another order of the same experts is only said.

    A row is a tie, and does not count, where the worst expert that B took is no more than `tie` below
    the best one that it left out: so little the order of a sum in fp32 decides.

    Args:
        scores: fp32, (tokens, experts), the router's; None leaves no row out.
    """
    sets_differ = (a.sort(dim=-1).values != b.sort(dim=-1).values).any(dim=-1)
    order_differs = (a != b).any(dim=-1)
    details: Details = {
        "rows_differ": int(sets_differ.sum()),
        "rows_other_order": int((order_differs & ~sets_differ).sum()),
        "rows": sets_differ.numel(),
    }
    wrong = sets_differ
    if scores is not None and bool(sets_differ.any()):
        tied = sets_differ & _router_ties(a, b, scores, tie)
        wrong = sets_differ & ~tied
        details["rows_tied"] = int(tied.sum())
    where = next((each for each in (wrong, sets_differ) if bool(each.any())), order_differs)
    at: tuple[int, ...] = ()
    if bool(where.any()):
        row = unflatten(int(where.flatten().to(torch.uint8).argmax()), tuple(where.shape))
        at = (*row, int((a[row] != b[row]).to(torch.uint8).argmax()))
    remark = ""
    if bool(order_differs.any()) and not bool(sets_differ.any()):
        remark = "the same experts in another order"
    elif bool(sets_differ.any()) and not bool(wrong.any()):
        remark = "tie-equivalent: the routers' scores of these experts are the same within fp32"
    value = float(wrong.float().mean()) if wrong.numel() else 0.0
    return ChoiceDistance(value=value, details=details, coordinate=at, remark=remark)


def _router_ties(
    a: torch.Tensor, b: torch.Tensor, scores: torch.Tensor, tie: float
) -> torch.Tensor:
    took_a, took_b = (as_mask(x, scores.shape[-1]) for x in (a, b))
    same_size = took_a.sum(dim=-1) == took_b.sum(dim=-1)
    best_lost = scores.masked_fill(~took_a | took_b, -torch.inf).amax(dim=-1)
    worst_taken = scores.masked_fill(took_a | ~took_b, torch.inf).amin(dim=-1)
    return same_size & (best_lost - worst_taken <= tie)


def integer_distance(a: torch.Tensor, b: torch.Tensor) -> ChoiceDistance:
    """Compare integers exactly."""
    differs = a != b
    count = int(differs.sum())
    at: tuple[int, ...] = ()
    if count:
        at = unflatten(int(differs.flatten().to(torch.uint8).argmax()), tuple(differs.shape))
    value = count / max(differs.numel(), 1)
    return ChoiceDistance(value=value, details={"differ": count}, coordinate=at, remark="")
