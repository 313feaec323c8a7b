"""Faults in the attention's softmax, and the pieces from which faulty attention sites are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch

from dih20.parity.model import Phase
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import BOTH, PREFILL, Fault, Injector, any_phases, phase_of_rows
from v41 import attention
from v41.attention_site import AttentionSite
from v41.cache import Rows
from v41.model import Reference
from v41.tap import Tap

Phases = tuple[Phase, ...]


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class BrokenSite(AttentionSite):
    """An attention site whose `change` acts in some phases only."""

    phases: Phases = BOTH

    def __call__(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        if phase_of_rows(rows) not in self.phases:
            return super().__call__(x, rows)
        return self.broken(x, rows)

    def broken(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        return super().__call__(x, rows)


def with_site(
    base: Base, layer: int, make: Callable[..., AttentionSite]
) -> Callable[[Tap], Reference]:
    """Give a builder of the model in which one layer's attention is another object."""

    def build(tap: Tap) -> Reference:
        model = base.reference(tap)
        model._attention[layer] = make(layer, model.config, model.weights, model.numerics, tap)
        return model

    return build


def _attend_fault(
    cause: str, detail: str, arguments: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> Injector:
    """arguments(mask, sink) gives the mask and sink that the broken kernel works with."""

    def inject(base: Base, random: Random) -> Fault:
        layer = random.randrange(base.oracle.config.num_hidden_layers)
        phases = PREFILL if cause == "all-keys-masked" else any_phases(random)
        healthy = attention.attend

        def attend(q: Any, keys: Any, mask: Any, sink: Any, numerics: Any) -> torch.Tensor:
            return healthy(q, keys, *arguments(mask, sink), numerics)

        class Site(BrokenSite):
            def broken(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
                with replaced(attention, "attend", attend):
                    return AttentionSite.__call__(self, x, rows)

        Site.phases = phases
        return Fault(
            cause=cause, site=f"layers.{layer}.attn.context", phases=phases, detail=detail,
            build=with_site(base, layer, Site),
        )  # fmt: skip

    return inject


def _causal_on_rows(mask: torch.Tensor, sink: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep key k of query row i only if k <= i, in a buffer whose first 128 rows are history."""
    rows, keys = mask.shape[1:]
    buffer_row = 128 + torch.arange(keys)
    return mask & (buffer_row <= torch.arange(rows).unsqueeze(-1)), sink


ALL_KEYS_MASKED = _attend_fault(
    "all-keys-masked", "a causal rule on buffer rows: key row <= query row", _causal_on_rows
)
SINK_MISSING = _attend_fault(
    "sink-missing", "the sink is left out", lambda mask, sink: (mask, sink - torch.inf)
)
SINK_BASE_2 = _attend_fault(
    "sink-log-base", "the sink enters as a base-2 logit",
    lambda mask, sink: (mask, sink * 0.6931471805599453),
)  # fmt: skip
SINK_SCALED_TWICE = _attend_fault(
    "sink-log-base", "the sink is scaled by log2(e) without need",
    lambda mask, sink: (mask, sink * 1.4426950408889634),
)  # fmt: skip
