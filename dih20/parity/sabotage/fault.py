"""What a fault is: how it is put into a model, and what the tool should say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dih20.parity.model import Phase
from dih20.parity.sabotage.base import Base
from v41.cache import Rows
from v41.model import Reference
from v41.tap import Tap

BOTH: tuple[Phase, ...] = ("prefill", "decode")
DECODE: tuple[Phase, ...] = ("decode",)
PREFILL: tuple[Phase, ...] = ("prefill",)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One injected fault.

    cause: the cause to be named, "" for one that has no signature.
    site, phases: where it acts; the tool should name this site, and the first of these phases.
    build: makes the broken model around a tap.
    """

    cause: str
    site: str
    phases: tuple[Phase, ...]
    detail: str
    build: Callable[[Tap], Reference]

    @property
    def phase(self) -> Phase:
        return self.phases[0]


# Makes a fault for a base; draws its layer, phase and magnitude from the generator.
Injector = Callable[[Base, Random], Fault]


def phase_of_rows(rows: Rows) -> Phase:
    """Name the phase of the rows that a layer is given."""
    return "decode" if len(rows.positions) == 1 and rows.cache.length > 0 else "prefill"


def any_phases(random: Random) -> tuple[Phase, ...]:
    return random.choice((BOTH, PREFILL, DECODE))
