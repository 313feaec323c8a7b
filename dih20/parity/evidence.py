"""The tensors around a finding, for those who explain it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from dih20.parity.dump import DumpReader
from dih20.parity.model import Finding
from dih20.parity.oracle import Oracle
from v41.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A finding with both dumps and, if there is one, the reference.

    Tensors that are not in a dump, or are there in statistics only, are None.
    """

    finding: Finding
    dump_a: DumpReader
    dump_b: DumpReader
    oracle: Oracle | None = None

    @property
    def config(self) -> ModelConfig:
        return self.dump_a.config

    def a(self, site: str | None = None, step: int | None = None) -> torch.Tensor | None:
        """Give A's tensor; site and step default to the finding's."""
        return self._from(self.dump_a, site, step)

    def b(self, site: str | None = None, step: int | None = None) -> torch.Tensor | None:
        """Give B's tensor; site and step default to the finding's."""
        return self._from(self.dump_b, site, step)

    def _from(self, dump: DumpReader, site: str | None, step: int | None) -> torch.Tensor | None:
        key = (self.finding.step if step is None else step, site or self.finding.site)
        return dump.tensor(*key) if dump.is_stored(*key) else None

    def positions(self, step: int | None = None) -> torch.Tensor:
        """Give the positions of a step's rows, int64."""
        step = self.finding.step if step is None else step
        return torch.tensor(self.dump_a.facts.positions[step], dtype=torch.int64)

    def forced(self) -> torch.Tensor | None:
        """Give what the reference computes at the finding's site from B's inputs, else A's tensor."""
        found = self.recompute() if self.oracle is not None else None
        return self.a() if found is None else found

    def recompute(
        self,
        patch: AbstractContextManager[object] | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor | None:
        """Compute the finding's site from B's inputs, under a fault that is switched on meanwhile.

        When the result is B's tensor, the fault explains it. None without a reference.

        Args:
            patch: entered around the computation.    weights: used instead of the reference's.
        """
        if self.oracle is None:
            return None
        wanted = (self.finding.step, self.finding.site)
        found: list[torch.Tensor] = []

        def seen(step: int, site: str, tensor: torch.Tensor) -> None:
            if (step, site) == wanted:
                found.append(tensor)

        with patch or nullcontext():
            self.oracle.run(
                self.dump_b, seen, forced=True, weights=weights, last_step=self.finding.step
            )
        return found[0] if found else None
