"""The registry of checks behind `inv doctor`: any package adds its own in a module checks.py.

    @check("docker engine", where="local")
    def docker_engine(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("Engine 28.2.2, API 1.50")

A check reads and reports; it never changes anything and never raises for what it was made to find.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dih20.errors import ToolError
from dih20.hosts.runner import Runner

Status = Literal["ok", "warn", "fail", "not applicable", "not run"]
Where = Literal["local", "host"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result: what was found, and for anything but ok what was expected and what to run."""

    status: Status
    found: str
    expected: str = ""
    remedy: str = ""

    @classmethod
    def ok(cls, found: str) -> Finding:
        return cls(status="ok", found=found)

    @classmethod
    def fail(cls, found: str, *, expected: str, remedy: str) -> Finding:
        return cls(status="fail", found=found, expected=expected, remedy=remedy)

    @classmethod
    def warn(cls, found: str, *, expected: str, remedy: str) -> Finding:
        return cls(status="warn", found=found, expected=expected, remedy=remedy)

    @classmethod
    def not_applicable(cls, why: str) -> Finding:
        return cls(status="not applicable", found=why)

    @classmethod
    def not_run(cls, why: str) -> Finding:
        return cls(status="not run", found=why)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a check looks at: a runner for the machine, and the host's configuration if there is one."""

    runner: Runner
    host: Any = None  # dih20.config.HostConfig when where="host"
    extra: dict[str, Any] = field(default_factory=dict)


Check = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class Registered:
    name: str
    where: Where
    function: Check


_CHECKS: dict[tuple[Where, str], Registered] = {}


def check(name: str, *, where: Where) -> Callable[[Check], Check]:
    """Give a decorator that registers a check; a name may be used once per place."""

    def register(function: Check) -> Check:
        key = (where, name)
        known = _CHECKS.get(key)
        assert known is None or _name(known.function) == _name(function), (
            f"two checks are named {name!r}: {known} and {function}"
        )
        _CHECKS[key] = Registered(name=name, where=where, function=function)
        return function

    return register


def _name(function: Check) -> tuple[str, str]:
    """Name a function across imports: a module that is loaded again registers its checks again."""
    return function.__module__, function.__qualname__


def discover() -> None:
    """Import every dih20/*/checks.py, so that its checks are registered."""
    for path in sorted(Path(__file__).resolve().parent.parent.glob("*/checks.py")):
        importlib.import_module(f"dih20.{path.parent.name}.checks")


def registered(where: Where) -> list[Registered]:
    return sorted((c for c in _CHECKS.values() if c.where == where), key=lambda c: c.name)


def run_checks(subject: Subject, where: Where) -> Iterator[tuple[str, Finding]]:
    """Run every check for a place; an error that a check lets through is a finding, not an end."""
    for entry in registered(where):
        try:
            for finding in entry.function(subject):
                yield entry.name, finding
        except ToolError as error:
            yield (
                entry.name,
                Finding.fail(error.found, expected=error.expected, remedy=error.remedy),
            )
