"""`inv rebuild --check image|wheels`: the same inputs twice, and what differs."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "check": "image or wheels",
        "base": "image: vllm or stand-in; without it, what configs/images says",
        "only": "image: di-h20 or ci; wheels: recipe names, separated by commas",
        "times": "how many double builds",
        "evidence": "also write the outcome to this JSON file",
    },
)
def rebuild(
    run: Run, check: str, base: str = "", only: str = "", times: int = 1, evidence: str = ""
) -> dict[str, Any]:
    """Build twice without cache, compare bit by bit, name the first file that differs."""
    from dih20.rebuild.choice import checker

    check_it = checker(check, base)
    return check_it(run.ui, only=only, times=times, evidence=evidence, plan_only=run.plan)
