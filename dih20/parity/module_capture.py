"""Dump a run of any torch module tree, by a site map; the sources of the engine stay untouched.

    with ModuleCapture(model, load_map("deepinfer"), writer):
        engine.generate(...)

The calls named in the map are wrapped on the module instances while the context is open, and put
back when it closes, also after an error.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from dih20.errors import DumpUnusable
from dih20.parity.dump import DumpWriter
from dih20.parity.model import Phase, Shard
from dih20.parity.site_map import SiteMap, SiteRule, StepRule

_Call = Callable[..., Any]


class ModuleCapture:
    """Capture every site of the map into a writer while the context is open."""

    def __init__(
        self, model: torch.nn.Module, site_map: SiteMap, writer: DumpWriter, *, world: int = 1
    ) -> None:
        self.model, self.map, self.writer, self.world = model, site_map, writer, world
        self._wrapped: list[tuple[Any, str, bool, Any]] = []
        self._phase: Phase | None = None
        self._sequences = 1

    def __enter__(self) -> ModuleCapture:
        try:
            for rule in self.map.sites:
                for module, layer in self._modules(rule):
                    self._wrap(module, rule.call, self._site_hook(rule, layer))
            if self.map.step is not None:  # outermost: a step begins before its first site
                module = _submodule(self.model, self.map.step.at)
                self._wrap(module, self.map.step.call, before=self._step_hook(self.map.step))
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def begin_step(self, phase: Phase, tokens: list[list[int]], positions: list[int]) -> None:
        """Start a forward pass by hand, for a map without `step`."""
        self._phase, self._sequences = phase, len(tokens)
        self.writer.begin_step(phase, tokens, positions)

    def _modules(self, rule: SiteRule) -> Iterator[tuple[Any, int | None]]:
        """Give the modules a rule speaks of; layers that lack the module are left out."""
        names = dict(self.model.named_modules())
        pattern = re.compile(re.escape(rule.at).replace(r"\{layer\}", r"(?P<layer>\d+)") + r"\Z")
        found = [
            (module, match) for name, module in names.items() if (match := pattern.match(name))
        ]
        if not found:
            near = [name for name in names if name.rsplit(".", 1)[-1] == rule.at.rsplit(".", 1)[-1]]
            raise DumpUnusable(
                found=f"no module {rule.at} for site {rule.site}",
                expected=f"a module of the tree; of the same last name: {', '.join(near[:4]) or 'none'}",
                remedy="correct `at` in the site map",
            )
        for module, match in found:
            has_layer = "layer" in match.groupdict()
            yield module, int(match["layer"]) if has_layer else None

    def _wrap(
        self, module: Any, call: str, after: _Call | None = None, before: _Call | None = None
    ) -> None:
        original = getattr(module, call, None)
        if not callable(original):
            raise DumpUnusable(
                found=f"{type(module).__name__} has no method {call}",
                expected="the method that the site map names in `call`",
                remedy="correct `call` in the site map, or take the map of this engine's version",
            )
        signature = inspect.signature(original)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            if before is not None:
                before(given, None)
            result = original(*args, **kwargs)
            if after is not None:
                after(given, result)
            return result

        self._wrapped.append((module, call, call in vars(module), vars(module).get(call)))
        setattr(module, call, wrapped)

    def _restore(self) -> None:
        for module, call, was_own, value in reversed(self._wrapped):
            if was_own:
                setattr(module, call, value)
            else:
                delattr(module, call)
        self._wrapped = []

    def _step_hook(self, rule: StepRule) -> _Call:
        def hook(given: dict[str, Any], _: Any) -> None:
            tokens, positions = (_take(path, given, None) for path in (rule.tokens, rule.positions))
            is_prefill = bool(_take(rule.prefill, given, None))
            rows = tokens if tokens.dim() == 2 else tokens.unsqueeze(0)
            flat = positions.flatten()[: rows.shape[1]]
            self.begin_step("prefill" if is_prefill else "decode", rows.tolist(), flat.tolist())

        return hook

    def _site_hook(self, rule: SiteRule, layer: int | None) -> _Call:
        site = rule.site.replace("{layer}", str(layer))

        def hook(given: dict[str, Any], result: Any) -> None:
            if self._phase is None or (rule.only and rule.only != self._phase):
                return
            tensor = _take(rule.take, given, result)
            if not isinstance(tensor, torch.Tensor):
                raise DumpUnusable(
                    found=f"{rule.take} of {rule.at}.{rule.call} is a {type(tensor).__name__}",
                    expected=f"the tensor of {site}",
                    remedy="correct `take` in the site map",
                )
            if rule.shape == "tokens":
                tensor = tensor.unflatten(0, (self._sequences, -1))
            self.writer.add(site, tensor, Shard(merge=rule.merge, dim=rule.dim, world=self.world))

        return hook


def _submodule(model: torch.nn.Module, path: str) -> Any:
    return model.get_submodule(path) if path else model


def _take(path: str, given: dict[str, Any], result: Any) -> Any:
    """Follow "result.1", "arg.input_metadata.positions" and the like; "x.move" is an attribute too."""
    root, *rest = path.split(".")
    if root == "arg":
        name, *rest = rest
        if name not in given:
            raise DumpUnusable(
                found=f"no argument {name!r} in a call with {', '.join(given) or 'none'}",
                expected=f"{path}, as the site map says",
                remedy="correct the name in the site map",
            )
        value = given[name]
    else:
        value = result
    for part in rest:
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value
