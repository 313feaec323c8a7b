"""Capture an engine's sites; a rule of the map that does not fit is named, and the rest go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dih20.errors import DumpUnusable
from dih20.parity.dump import DumpWriter
from dih20.parity.module_capture import ModuleCapture
from dih20.parity.site_map import SiteMap, SiteRule, StepRule

_Hook = Callable[[dict[str, Any], Any], None]
# What a path, a shape or a method that is not there raises.
_MISFITS = (
    DumpUnusable, AttributeError, KeyError, IndexError, TypeError, RuntimeError, AssertionError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A site that is made from what a call was given and gave: (arguments, result, positions).

    None means that this call has nothing for the site.
    """

    site: str
    at: str
    call: str
    make: Callable[[dict[str, Any], Any, Sequence[int]], torch.Tensor | None]


class TolerantCapture(ModuleCapture):
    """A ModuleCapture that goes on; `faults` holds rule -> why it does not fit.

    skip: says whether the forward pass that runs is none of a request (an engine runs such ones too).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        site_map: SiteMap,
        writer: DumpWriter,
        *,
        skip: Callable[[], bool],
        computed: Sequence[Computed] = (),
    ) -> None:
        super().__init__(model, site_map, writer)
        self.skip, self.computed = skip, computed
        self.faults: dict[str, str] = {}
        self._positions: tuple[int, ...] = ()

    def __enter__(self) -> TolerantCapture:
        try:
            for rule in self.map.sites:
                self._try(rule, partial(self._site_hook, rule))
            for each in self.computed:
                rule = SiteRule(site=each.site, at=each.at, call=each.call)
                self._try(rule, partial(self._computed_hook, each))
            step = self.map.step
            assert step is not None, f"the map of {self.map.engine} has no step"
            module = self.model.get_submodule(step.at) if step.at else self.model
            self._wrap(module, step.call, before=self._step_hook(step))
        except BaseException:
            self._restore()
            raise
        return self

    def _try(self, rule: SiteRule, hook_of: Callable[[int | None], _Hook]) -> None:
        label = f"{rule.site} at {rule.at}.{rule.call}"
        try:
            for module, layer in self._modules(rule):
                self._wrap(module, rule.call, self._kept_going(label, hook_of(layer)))
        except DumpUnusable as misfit:
            self.faults[label] = misfit.found

    def _kept_going(self, label: str, hook: _Hook) -> _Hook:
        def going(given: dict[str, Any], result: Any) -> None:
            try:
                hook(given, result)
            except _MISFITS as misfit:
                found = misfit.found if isinstance(misfit, DumpUnusable) else str(misfit)
                self.faults.setdefault(label, f"{type(misfit).__name__}: {found}")

        return going

    def _computed_hook(self, each: Computed, layer: int | None) -> _Hook:
        site = each.site.replace("{layer}", str(layer))

        def hook(given: dict[str, Any], result: Any) -> None:
            if self._phase is None:
                return
            tensor = each.make(given, result, self._positions)
            if tensor is not None:
                self.writer.add(site, tensor)

        return hook

    def _step_hook(self, rule: StepRule) -> _Hook:
        begin = super()._step_hook(rule)

        def hook(given: dict[str, Any], result: Any) -> None:
            if self.skip():
                self._phase = None
                return
            begin(given, result)
            self._positions = self.writer._facts.positions[-1]

        return hook
