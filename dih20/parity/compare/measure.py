"""Measure two tensors of one site in the way its kind asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from dih20.parity.compare.choices import (
    ChoiceDistance,
    as_mask,
    expert_distance,
    integer_distance,
    selection_distance,
)
from dih20.parity.compare.dense import PIECE, dense_distance
from dih20.parity.compare.limits import table
from dih20.parity.compare.quantised import code_details
from dih20.parity.dump import DumpReader
from dih20.parity.model import Measure, Site
from v41.config import ModelConfig
from v41.indexer import visible_entries

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a measure needs besides the tensors.

    scores: A's index scores of the same layer and step, to tell ties; None if not dumped.
    router: scores of a layer's router, likewise; known where the reference computes from a dump.
    experts: both runs' expert ids, so that weights are compared expert by expert.
    positions: of the step's rows.
    """

    config: ModelConfig
    positions: tuple[int, ...]
    limit: float
    floor: float | None
    scores: torch.Tensor | None = None
    router: torch.Tensor | None = None
    experts: Pair | None = None


def measure_tensors(
    site: Site, a: torch.Tensor, b: torch.Tensor, context: Context
) -> tuple[Measure, str]:
    """Give B's distance from A and a remark, "" where there is nothing to say."""
    if site.kind == "selection":
        entries = context.scores.shape[-1] if context.scores is not None else _entries(a, b)
        masks = as_mask(a, entries), as_mask(b, entries)
        near = table()["score_margin"]
        return _choice(selection_distance(*masks, context.scores, near_tie=near), context)
    if site.kind == "expert_ids":
        tie = table()["router_tie"]
        return _choice(expert_distance(a, b, context.router, tie=tie), context)
    if site.kind == "integer":
        return _choice(integer_distance(a, b), context)
    a, b = comparable_values(site, a, b, context)
    measure = _dense(_split(a, b), tuple(a.shape), context)
    details = dict(measure.details)
    if site.rule is not None:
        details |= code_details(a, b, site.rule)
    measure = replace(measure, details=details)
    remark = ""
    if measure.exceeds and a.dim() >= 2 and a.shape[-1] == a.shape[-2]:
        remark = "B's values are A's transposed" if torch.equal(a.mT, b) else ""
    return measure, remark


def measure_stored(
    site: Site, step: int, a: DumpReader, b: DumpReader, context: Context
) -> tuple[Measure, str]:
    """The same for two dumps; large float tensors are read a piece at a time."""
    name = site.name
    if site.kind == "dense" and site.leaf != "expert_weights" and not _is_square(a, step, name):
        pieces = zip(a.pieces(step, name, PIECE), b.pieces(step, name, PIECE), strict=True)
        return _dense(pieces, a.shape(step, name), context), ""
    return measure_tensors(site, a.tensor(step, name), b.tensor(step, name), context)


def _is_square(dump: DumpReader, step: int, name: str) -> bool:
    shape = dump.shape(step, name)
    return len(shape) >= 2 and shape[-1] == shape[-2]


def _entries(a: torch.Tensor, b: torch.Tensor) -> int:
    masks: list[int] = [x.shape[-1] for x in (a, b) if x.dtype == torch.bool]
    largest: list[int] = [int(x.max()) + 1 for x in (a, b) if x.dtype != torch.bool and x.numel()]
    return max([*masks, *largest, 1])


def _choice(distance: ChoiceDistance, context: Context) -> tuple[Measure, str]:
    measure = Measure(
        value=distance.value,
        limit=context.limit,
        floor=context.floor,
        details=distance.details,
        coordinate=distance.coordinate,
    )
    return measure, distance.remark


def comparable_values(site: Site, a: torch.Tensor, b: torch.Tensor, context: Context) -> Pair:
    """Blank what does not matter: scores that no row may see; put expert weights in one order."""
    if site.kind == "scores" and site.layer is not None:
        ratio = context.config.layer(site.layer).ratio
        positions = torch.tensor(context.positions)
        hidden = ~visible_entries(positions, a.shape[-1], ratio)
        return a.float().masked_fill(hidden, 0.0), b.float().masked_fill(hidden, 0.0)
    if site.leaf == "expert_weights" and context.experts is not None:
        ids_a, ids_b = context.experts
        sorted_a, sorted_b = ids_a.sort(dim=-1), ids_b.sort(dim=-1)
        same = (sorted_a.values == sorted_b.values).all(dim=-1, keepdim=True)
        zero = torch.zeros(())
        a = torch.where(same, a.gather(-1, sorted_a.indices), zero)
        b = torch.where(same, b.gather(-1, sorted_b.indices), zero)
    return a, b


def _split(a: torch.Tensor, b: torch.Tensor) -> Iterator[Pair]:
    return zip(a.flatten().split(PIECE), b.flatten().split(PIECE), strict=True)


def _dense(pairs: Iterable[Pair], shape: tuple[int, ...], context: Context) -> Measure:
    distance = dense_distance(pairs, shape)
    details: dict[str, float | int | str] = {
        "max_ulp": distance.max_ulp,
        "elements_differ": distance.num_different,
        "elements": distance.count,
    }
    if distance.not_finite_once:
        details["not_finite_on_one_side"] = distance.not_finite_once
    if distance.nan_both:
        details["nan_on_both_sides"] = distance.nan_both
    found = distance.flat >= 0
    return Measure(
        value=distance.normalised,
        limit=context.limit,
        floor=context.floor,
        details=details,
        coordinate=distance.coordinate,
        a=distance.a if found else None,
        b=distance.b if found else None,
    )
