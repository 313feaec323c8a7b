"""Faults in FP4 roundings and in the choice of entries."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from dih20.parity.sabotage.attention_faults import BrokenSite, replaced, with_site
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import BOTH, Fault, Injector
from v41.attention_site import AttentionSite
from v41.cache import LayerCache, Rows
from v41.numerics import Numerics


class TiedNumerics(Numerics):
    """Numerics whose FP4 casts send halfway values away from zero."""

    def index_vector(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, 32))
        amax = groups.abs().amax(dim=-1, keepdim=True).clamp_min(6.0 * 2.0**-126)
        return _away(groups, torch.exp2(torch.ceil(torch.log2(amax.double() / 6.0))).float())

    def compressed_entry(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, 16))
        amax = groups.abs().amax(dim=-1, keepdim=True).clamp_min(6.0 * 2.0**-9)
        scale = (amax * (1.0 / torch.tensor(6.0))).clamp_max(448.0)
        return _away(groups, scale.to(torch.float8_e4m3fn).float(), reciprocal=True)


def _away(groups: torch.Tensor, scale: torch.Tensor, reciprocal: bool = False) -> torch.Tensor:
    """Round to e2m1 with ties to the larger magnitude."""
    scaled = groups * (1.0 / scale) if reciprocal else groups / scale
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    code = torch.bucketize(scaled.abs(), bounds, right=True)
    return (values[code] * scaled.sign() * scale).flatten(-2)


def _tie_fault(site: str, method: str) -> Injector:
    def inject(base: Base, random: Random) -> Fault:
        layer = random.choice(base.layers("full"))

        class Site(BrokenSite):
            def broken(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
                plain = self.numerics
                tied = TiedNumerics(**vars(plain))
                mixed = _Mixed(plain, {method: getattr(tied, method)})
                with replaced(self, "numerics", mixed):
                    return AttentionSite.__call__(self, x, rows)

        return Fault(
            cause="tie-rounding", site=f"layers.{layer}.attn.{site}", phases=BOTH,
            detail="halfway FP4 values go away from zero", build=with_site(base, layer, Site),
        )  # fmt: skip

    return inject


class _Mixed:
    """Numerics with one method from elsewhere."""

    def __init__(self, plain: Numerics, other: dict[str, Any]) -> None:
        self.plain, self.other = plain, other

    def __getattr__(self, name: str) -> Any:
        return self.other[name] if name in self.other else getattr(self.plain, name)


TIES_IN_ENTRIES = _tie_fault("compressed_kv", "compressed_entry")
TIES_IN_INDEX_KEYS = _tie_fault("index_key", "index_vector")


def candidates_ignored(base: Base, random: Random) -> Fault:
    """Choose among all visible entries at a layer that should keep to the published blocks."""
    layer = random.choice(base.layers("reindex"))

    class Site(BrokenSite):
        def _select(
            self, x: torch.Tensor, q_low: torch.Tensor, state: LayerCache, rows: Rows
        ) -> torch.Tensor:
            assert rows.candidates is not None, self.site
            with replaced(rows, "candidates", torch.ones_like(rows.candidates)):
                return AttentionSite._select(self, x, q_low, state, rows)

    return Fault(
        cause="candidates-ignored", site=f"layers.{layer}.attn.chosen", phases=BOTH,
        detail="all visible entries are candidates", build=with_site(base, layer, Site),
    )  # fmt: skip
