"""What counts as a difference: the table in limits.yaml, and the measured noise floor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from dih20.parity.model import RunFacts, SiteKind

_CHOICES = ("selection", "expert_ids", "integer")


@cache
def table() -> dict[str, float]:
    """Give limits.yaml as numbers."""
    raw = yaml.safe_load((Path(__file__).parent / "limits.yaml").read_text(encoding="utf-8"))
    return {name: float(value) for name, value in raw.items()}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits between two runs."""

    same_arithmetic: bool

    @classmethod
    def between(cls, a: RunFacts, b: RunFacts) -> Limits:
        return cls(same_arithmetic=a.arithmetic == b.arithmetic)

    @classmethod
    def of_replay(cls, run: RunFacts, mode: str) -> Limits:
        """Give the limits between a run and the reference in a mode, here and now."""
        import torch

        here = ("reference", mode, "cpu", torch.__version__)
        return cls(same_arithmetic=run.arithmetic == here)

    def of(self, kind: SiteKind, floor: float | None) -> float:
        """Give the limit of a kind's measure, given the noise floor at this site."""
        known = table()
        least = known[kind]
        if self.same_arithmetic and kind not in _CHOICES:
            least = known["same_arithmetic"]
        return max(least, known["floor_factor"] * (floor or 0.0))
