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


def checker(name: str, base: str = "") -> Check:
    """Give the check of images, on the configured or the named base, or of wheels."""
    if name == "image":
        from functools import partial

        from dih20.rebuild import image

        return partial(image.check, base=base)
    if name == "wheels" and not base:
        from dih20.rebuild import wheels

        return wheels.check
    raise UsageError(
        found=f"--check {name}" + (f" --base {base}" if base else ""),
        expected="image, with or without --base, or wheels, which are checked in the newest image",
        remedy="correct the command line",
    )
