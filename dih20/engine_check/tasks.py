"""`inv engine-check`: is the patched engine right on this GPU, stage by stage."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "stage": "letters: c, b,e or b-f; all without it",
        "prepare": "compute the reference's values, and stop",
        "merge": "write docs/evidence/engine-check-h200.json from the records, and stop",
        "again": "also stages that passed with these very sources",
        "work": "folder for records, logs and dumps; build/engine-check",
        "prepared": "the reference's values, as --prepare wrote them",
        "checkpoint": "the canary with its vision shard; made when left out",
        "tree": "folder that holds the package deepinfer; the imported one when left out",
        "upstream": "folder that holds DeepGEMM's tests (stage a)",
        "together": "engines at once, when faults need engines of their own (stage h)",
        "memory": "share of the GPU's memory for one engine",
        "only": "part of a fault's name (stage h) or of a test file's (stage a)",
        "take": "one in so many of upstream's tests (stage a); 1 runs all",
        "workers": "test files at once (stage a); 3 at most",
        "limits": "factor on every time limit",
        "tests-limit": "seconds for upstream's tests (stage a)",
        "parallel": "stages b-f and h, g, and a beside each other",
    },
)
def engine_check(
    run: Run,
    stage: str = "",
    prepare: bool = False,
    merge: bool = False,
    again: bool = False,
    work: str = "",
    prepared: str = "",
    checkpoint: str = "",
    tree: str = "",
    upstream: str = "",
    together: int = 4,
    memory: float = 0.9,
    only: str = "",
    take: int = 12,
    workers: int = 3,
    limits: float = 1.0,
    tests_limit: int = 300,
    parallel: bool = False,
) -> dict[str, Any]:
    """Check the patched engine against the reference on one GPU."""
    given = {
        key: value for key, value in locals().items() if key not in ("run", "prepare", "merge")
    }
    from dih20.engine_check.command import run_check

    return run_check(run.ui, given, prepare=prepare, merge=merge, only_plan=run.plan)
