"""`inv capacity`: what the engine's settings need, before anything is started."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(help={"card": "96 or 141 (GB), or the total that CUDA reports, like 139.8GiB; default: both"})
def capacity(run: Run, card: str = "") -> dict[str, Any]:
    """Memory per GPU and cache tokens of configs/engine.yaml, and what is refused."""
    from dih20.capacity.report import capacity as show

    return show(run.ui, card=card)
