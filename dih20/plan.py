"""A plan: what a task is about to do, as plain values that can be printed, compared and tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "?"


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing to do.

    Args:
        verb: what happens, imperative: "transfer", "create".
        target: what it happens to: "layer 3 of 7", "container di-h20".
        why: the fact that makes it necessary, or that makes it unnecessary.
        needed: False when facts show it is done already; None when a fact is unknown.
        details: values the apply step reads; shown by --json.
    """

    verb: str
    target: str
    why: str = ""
    needed: bool | None = True
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """Give the sign shown before the action: + to do, = done already, ? not known."""
        return {True: "+", False: "=", None: UNKNOWN}[self.needed]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An ordered list of actions under a title."""

    title: str
    actions: tuple[Action, ...]

    @property
    def is_noop(self) -> bool:
        return all(action.needed is False for action in self.actions)

    def pending(self) -> Iterator[Action]:
        """Give the actions still to do, in order."""
        return (action for action in self.actions if action.needed is not False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "noop": self.is_noop,
            "actions": [
                {
                    "verb": a.verb,
                    "target": a.target,
                    "why": a.why,
                    "needed": a.needed,
                    **({"details": a.details} if a.details else {}),
                }
                for a in self.actions
            ],
        }
