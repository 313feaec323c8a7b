"""`inv build-vendor`: the wheels, built in the image, kept by what they were made from."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "only": "recipe names, separated by commas; without it every recipe",
        "image": "tag or id of the di-h20 image; without it the newest one of the lock in force",
        "jobs": "at most this many compilers at once; memory and cores may allow fewer",
        "memory": "memory limit of the build container in GB; without it the engine's memory",
        "torch": "first put the lock's torch on an image that has none (the stand-in), as one more layer",
        "evidence": "also write the outcome to this JSON file: sizes, times, peak memory, verdicts",
    },
)
def build_vendor(
    run: Run,
    only: str = "",
    image: str = "",
    jobs: int = 0,
    memory: float = 0.0,
    torch: bool = False,
    evidence: str = "",
) -> dict[str, Any]:
    """Wheels: deep_gemm, deep_ep, deepinfer (_C), h20_probe, h20_ops and its drop-ins."""
    from dih20.wheels.command import Choice
    from dih20.wheels.command import build_vendor as carry_out

    choice = Choice(only=only, image=image, torch=torch, evidence=evidence)
    return carry_out(run.ui, choice, jobs=jobs, memory_gb=memory, plan_only=run.plan)
