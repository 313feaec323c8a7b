"""Walk two dumps in causal order: statistics first, tensors only where they begin to differ."""

from __future__ import annotations

import torch

from dih20.parity.compare.floor import Floors
from dih20.parity.compare.limits import Limits
from dih20.parity.compare.measure import Context, measure_stored
from dih20.parity.dump import DumpReader
from dih20.parity.model import Finding, Measure, Site
from dih20.parity.sites import site_of
from dih20.parity.statistics import estimate_difference, worst_segment

BRACKET = 8  # tensors that are read after the first one that differs
_CHOICES = ("selection", "expert_ids", "integer")
_DOUBT = 8.0  # an estimate this far below the limit needs no reading


class Walk:
    """Compare B with A, one finding per tensor that both have.

    full: read every tensor that is not equal by its digest.
    """

    def __init__(
        self, a: DumpReader, b: DumpReader, limits: Limits, floors: Floors, *, full: bool = False
    ) -> None:
        self.a, self.b, self.limits, self.floors, self.full = a, b, limits, floors, full
        self._left = BRACKET
        self._diverged = False

    def findings(self) -> list[Finding]:
        """Give the findings in causal order."""
        return [self._finding(step, name) for step, name in self.a.keys if (step, name) in self.b]

    def _finding(self, step: int, name: str) -> Finding:
        site = site_of(name, self.a.config)
        measure, remark = self._measure(site, step)
        record = self.a.record(step, name)
        self._diverged = self._diverged or measure.exceeds
        return Finding(
            site=name,
            kind=site.kind,
            layer=record.layer,
            layer_kind=record.layer_kind,
            phase=record.phase,
            step=step,
            measure=measure,
            remark=remark,
        )

    def _measure(self, site: Site, step: int) -> tuple[Measure, str]:
        floor = self.floors.get((step, site.name))
        limit = self.limits.of(site.kind, floor)
        (stat_a, sketch_a), (stat_b, sketch_b) = (
            d.describe(step, site.name) for d in (self.a, self.b)
        )
        if stat_a.digest == stat_b.digest:
            return Measure(value=0.0, limit=limit, floor=floor), ""
        estimate = estimate_difference(sketch_a, sketch_b)
        if (stat_a.nan, stat_a.inf) != (stat_b.nan, stat_b.inf):
            estimate = float("nan")
        if self._should_read(site, step, estimate, limit):
            return measure_stored(
                site, step, self.a, self.b, self._context(site, step, limit, floor)
            )
        details: dict[str, float | int | str] = {
            "worst_segment": worst_segment(sketch_a, sketch_b),
            "rms_a": stat_a.rms,
            "rms_b": stat_b.rms,
        }
        remark = "from statistics; ties cannot be told" if site.kind in _CHOICES else ""
        measure = Measure(value=estimate, limit=limit, floor=floor, details=details, estimated=True)
        return measure, remark

    def _should_read(self, site: Site, step: int, estimate: float, limit: float) -> bool:
        if not (self.a.is_stored(step, site.name) and self.b.is_stored(step, site.name)):
            return False
        if self.full or site.kind in _CHOICES:
            return True
        if self._diverged:
            self._left -= 1
            return self._left >= 0
        return not estimate < limit / _DOUBT

    def _context(self, site: Site, step: int, limit: float, floor: float | None) -> Context:
        prefix = site.name.rsplit(".", 1)[0]
        scores, experts = None, None
        if site.kind == "selection":
            scores = self._optional(self.a, step, f"{prefix}.index_scores")
        if site.leaf == "expert_weights":
            ids = [self._optional(dump, step, f"{prefix}.expert_ids") for dump in (self.a, self.b)]
            experts = (ids[0], ids[1]) if ids[0] is not None and ids[1] is not None else None
        return Context(
            config=self.a.config,
            positions=self.a.facts.positions[step],
            limit=limit,
            floor=floor,
            scores=scores,
            experts=experts,
        )

    @staticmethod
    def _optional(dump: DumpReader, step: int, site: str) -> torch.Tensor | None:
        return dump.tensor(step, site) if dump.is_stored(step, site) else None
