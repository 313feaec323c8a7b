"""Say which check `inv rebuild --check` asks for."""

from __future__ import annotations

from typing import Any, Protocol

from dih20.console import Console
from dih20.errors import UsageError


class Check(Protocol):
    """A check: plain values when every pair is equal, NotReproducible when one is not."""

    def __call__(
        self, ui: Console, *, only: str, times: int, evidence: str, plan_only: bool
    ) -> dict[str, Any]: ...


def checker(name: str) -> Check:
    """Give the check of images or of wheels."""
    if name == "image":
        from dih20.rebuild import image

        return image.check
    if name == "wheels":
        from dih20.rebuild import wheels

        return wheels.check
    raise UsageError(
        found=f"--check {name}", expected="image or wheels", remedy="name one of the two"
    )
