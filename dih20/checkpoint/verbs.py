"""The verbs of `inv checkpoint`."""

from __future__ import annotations

from typing import Any

from dih20.console import Console
from dih20.errors import UsageError


def run_verb(
    ui: Console, verb: str, path: str, *, tensors: bool, device: str = "cpu"
) -> dict[str, Any]:
    """Carry out one verb; both only read."""
    if verb == "inspect":
        from dih20.checkpoint.inspecting import inspect

        return inspect(ui, path, tensors=tensors)
    if verb == "requant":
        from dih20.checkpoint.requantising import requant

        return requant(ui, path, device)
    raise UsageError(
        found=f"no verb {verb!r}",
        expected="inspect or requant",
        remedy="./inv checkpoint inspect PATH",
    )
