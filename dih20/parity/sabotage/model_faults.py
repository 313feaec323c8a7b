"""Faults in the feed-forward part and in the hyper-connections."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from dih20.parity.model import Phase
from dih20.parity.sabotage.attention_faults import replaced
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import BOTH, Fault, Injector, any_phases, phase_of_rows
from v41 import hyper_connections, moe
from v41.cache import Rows
from v41.model import Reference
from v41.tap import Tap


def gate_clamped(leaf: str) -> Injector:
    """Clamp the gate of the routed or the shared experts from below too."""

    def inject(base: Base, random: Random) -> Fault:
        layer = random.randrange(base.oracle.config.num_hidden_layers)
        healthy = moe.swiglu_expert

        def expert(
            x: Any, w1: Any, w3: Any, w2: Any, limit: Any, numerics: Any, row: Any = None
        ) -> Any:
            if (row is None) != (leaf == "shared"):
                return healthy(x, w1, w3, w2, limit, numerics, row)
            gate = torch.clamp(numerics.linear(x, w1), min=-limit, max=limit)
            up = torch.clamp(numerics.linear(x, w3), min=-limit, max=limit)
            hidden = gate * torch.sigmoid(gate) * up
            if row is not None:
                hidden = hidden * row[:, None]
            return numerics.linear(hidden, w2)

        class Model(Reference):
            def _moe(self, site: str, x: torch.Tensor) -> torch.Tensor:
                if site != f"layers.{layer}.ffn":
                    return super()._moe(site, x)
                with replaced(moe, "swiglu_expert", expert):
                    return super()._moe(site, x)

        return Fault(
            cause="gate-clamped-both-sides", site=f"layers.{layer}.ffn.{leaf}", phases=BOTH,
            detail=f"the {leaf} gate has a lower limit", build=lambda tap: base.reference(tap, Model),
        )  # fmt: skip

    return inject


def pre_not_delayed(base: Base, random: Random) -> Fault:
    """Collapse the streams with the site's own mix instead of the one before."""
    layer = random.randrange(base.oracle.config.num_hidden_layers)
    part = random.choice(("attn", "ffn"))
    phases = any_phases(random)

    class Model(Reference):
        def _site(
            self, layer_name: str, which: str, streams: torch.Tensor, pre: torch.Tensor, rows: Rows
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if (layer_name, which) == (f"layers.{layer}", part) and phase_of_rows(rows) in phases:
                names = (f"{layer_name}.hc_{which}_{n}" for n in ("fn", "base", "scale"))
                fn, bias, scale = (self.weights[name] for name in names)
                pre = hyper_connections.mixes(streams, fn, bias, scale, self.config).next_pre
            return super()._site(layer_name, which, streams, pre, rows)

    return Fault(
        cause="pre-mix-not-delayed", site=f"layers.{layer}.{part}.input", phases=phases,
        detail="collapsed by its own mix", build=lambda tap: base.reference(tap, Model),
    )  # fmt: skip


class PhaseTap:
    """A tap that changes one site's tensor in some phases, and passes everything else on."""

    def __init__(self, tap: Tap, site: str, phases: tuple[Phase, ...], change: Any) -> None:
        self.tap, self.site, self.phases, self.change = tap, site, phases, change
        self.started, self.phase = False, "prefill"

    def __call__(self, site: str, tensor: torch.Tensor) -> torch.Tensor:
        if site == "embed":
            self.phase = "decode" if self.started and tensor.shape[1] == 1 else "prefill"
            self.started = True
        if site == self.site and self.phase in self.phases:
            tensor = self.change(tensor)
        return self.tap(site, tensor)
