"""Keep every operator call of one forward pass: which, in which layer and part, with which tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call. where: of a layer, e.g. 'self_attn.q_b_proj'; inputs as they were before it ran."""

    layer: int
    where: str
    operator: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any

    @property
    def component(self) -> str:
        return f"{self.where}: {self.operator}" if self.where else self.operator


@dataclass(kw_only=True)
class Recorder:
    """Holds the calls while `active`; layer and path are set by the wrapped modules as they run.

    layers: a closure for each layer that runs it again from the same inputs.
    """

    active: bool = False
    calls: list[Call] = field(default_factory=list)
    layers: dict[int, Callable[[], Any]] = field(default_factory=dict)
    layer: int = -1
    path: list[str] = field(default_factory=list)
    depth: int = 0

    def start(self) -> None:
        """Forget what was kept and begin to keep."""
        self.active, self.calls, self.layers = True, [], {}

    def stop(self) -> tuple[list[Call], dict[int, Callable[[], Any]]]:
        self.active = False
        return self.calls, self.layers

    def operator(self, name: str, function: Callable[..., Any], kept: tuple[int, ...] = ()) -> Any:
        """Wrap an operator. kept: positions of arguments it changes, of which a copy is kept."""

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            if self.depth or not self.active or self.layer < 0:
                return function(*arguments, **keywords)
            saved = tuple(
                each.clone() if place in kept else alias(each)
                for place, each in enumerate(arguments)
            )
            named = {key: alias(value) for key, value in keywords.items()}
            self.depth += 1
            try:
                result = function(*arguments, **keywords)
            finally:
                self.depth -= 1
            self.calls.append(
                Call(
                    layer=self.layer,
                    where=".".join(self.path),
                    operator=name,
                    function=function if not kept else _restoring(function, saved, kept),
                    arguments=saved,
                    keywords=named,
                    result=alias(result),
                )
            )
            return result

        return recorded

    def method(self, name: str, function: Callable[..., Any]) -> Any:
        """Wrap a method whose object is no argument of the replay."""

        def recorded(itself: Any, *arguments: Any, **keywords: Any) -> Any:
            bound = self.operator(name, lambda *a, **k: function(itself, *a, **k))
            return bound(*arguments, **keywords)

        return recorded

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Name the part of a layer that runs."""
        self.path.append(part)
        try:
            yield
        finally:
            self.path.pop()


def alias(value: Any) -> Any:
    """Give the same memory under a tensor of its own: the engine empties some of its tensors after use."""
    if isinstance(value, torch.Tensor):
        return value.as_strided(value.size(), value.stride(), value.storage_offset())
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(alias(each) for each in value)
    if isinstance(value, list):
        return [alias(each) for each in value]
    return value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Give the tensors of arguments, however nested."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)


def _restoring(
    function: Callable[..., Any], saved: tuple[Any, ...], kept: tuple[int, ...]
) -> Callable[..., Any]:
    """Give a call that puts the changed arguments back first; the copies are in its time."""
    fresh = {place: saved[place].clone() for place in kept}

    def restored(*arguments: Any, **keywords: Any) -> Any:
        for place, value in fresh.items():
            arguments[place].copy_(value)
        return function(*arguments, **keywords)

    return restored
