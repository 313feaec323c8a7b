"""Faults without a known cause: a tensor between two sites is changed at random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch

from dih20.parity.model import Phase
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.fault import Fault, Injector, any_phases
from dih20.parity.sabotage.model_faults import PhaseTap
from dih20.parity.sites import causal_sites

Change = Callable[[torch.Tensor, float], torch.Tensor]


def _tensor_fault(
    what: str, change: Change, leaves: tuple[str, ...] | None, low: float, high: float
) -> Injector:
    """Change a random dense site in a random phase by a random magnitude between low and high."""

    def inject(base: Base, random: Random) -> Fault:
        sites = [
            site for site in causal_sites(base.oracle.config)
            if site.kind == "dense" and (leaves is None or site.leaf in leaves)
            and site.leaf not in ("next_pre", "latent")
        ]  # fmt: skip
        site = random.choice(sites).name
        phases: tuple[Phase, ...] = any_phases(random)
        magnitude = low * (high / low) ** random.random()

        return Fault(
            cause="", site=site, phases=phases, detail=f"{what} {magnitude:.3g}",
            build=lambda tap: base.reference(
                PhaseTap(tap, site, phases, lambda tensor: change(tensor, magnitude))
            ),
        )  # fmt: skip

    return inject


def _noise(tensor: torch.Tensor, magnitude: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())
    noise = torch.randn(tensor.shape, generator=generator)
    return tensor + magnitude * tensor.square().mean().sqrt() * noise


def _one_element(tensor: torch.Tensor, magnitude: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[tensor.numel() // 3] += magnitude * float(tensor.abs().max())
    return changed


NOISE = _tensor_fault("noise of relative size", _noise, None, 0.05, 1.0)
SCALED = _tensor_fault("scaled by 1 +", lambda t, m: t * (1.0 + m), None, 0.05, 1.0)
ONE_ELEMENT = _tensor_fault(
    "one element off by, in units of the largest,", _one_element, None, 1.0, 4.0
)
CHANNELS_ROLLED = _tensor_fault(
    "channels shifted by one, weight",
    lambda t, m: t + m * (t.roll(1, dims=-1) - t),
    ("q", "context", "norm", "input", "output"), 0.5, 1.0,
)  # fmt: skip
HEAD_LOST = _tensor_fault(
    "the last head scaled down by",
    lambda t, m: torch.cat((t[:, :, :-1], t[:, :, -1:] * (1.0 - m)), dim=2),
    ("context", "q"), 0.5, 1.0,
)  # fmt: skip
NOT_A_NUMBER = _tensor_fault(
    "NaN in one element, weight",
    lambda t, m: torch.where(torch.arange(t.numel()).view(t.shape) == t.numel() // 2, torch.nan, t),
    ("output", "q", "routed"), 1.0, 1.0,
)  # fmt: skip
