"""A fact: a command and the parser of what it says. Nothing else reads a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dih20.hosts.runner import Result, Runner

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Fact(Generic[T]):
    """One question to a host. The parser gets the whole result, so that it may read a failure too.

    Example:
        Fact(argv=("uname", "-r"), parse=lambda result: result.text.strip())
    """

    argv: tuple[str, ...]
    parse: Callable[[Result], T]
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0

    def ask(self, runner: Runner) -> T:
        result = runner.run(self.argv, env=self.env or None, timeout_s=self.timeout_s, check=False)
        return self.parse(result)
