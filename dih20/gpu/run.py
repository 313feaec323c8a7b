"""Start the operators' GPU tests and benchmarks in the Python that runs this task.

The work itself is in h20_ops.testing, which needs only torch and pytest, so it also runs on a GPU
machine that has none of this tool's packages.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

from dih20 import groups
from dih20.console import Console
from dih20.errors import TestsFailed, UsageError
from dih20.paths import REPOSITORY
from dih20.plan import Action, Plan

RUNNERS = {"gpu-test": "run_gpu_tests", "gpu-bench": "run_gpu_bench"}
RECORDS = {"gpu-test": "tests/gpu/evidence/<operator>.json", "gpu-bench": "bench/results/<card>/"}
_NO_GPU = 2  # the runners' exit code for a machine or tree they cannot use


def make_plan(task: str, only: str, select: str = "") -> Plan:
    """Say what would run and which files it would replace."""
    what = only or "every operator"
    record = Action(
        verb="replace",
        target=RECORDS[task],
        why="a selection is not recorded" if select else "what passed, and for which sources",
        needed=not select,
    )
    run = Action(verb="run", target=f"h20_ops.testing.{RUNNERS[task]} for {what}")
    return Plan(title=f"{task} on the GPU of this machine", actions=(run, record))


def run_on_gpu(
    ui: Console, task: str, *, only: str, commit: str, select: str = "", only_plan: bool = False
) -> dict[str, Any]:
    """Print the plan and run it; raise TestsFailed with the command when it does not pass."""
    plan = make_plan(task, only, select)
    ui.plan(plan)
    if only_plan:
        return plan.as_dict()
    if not os.environ.get("DI_PYTHON"):
        for group in ("dev", "torch"):
            groups.ensure(ui, group)
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            found=f"{sys.executable} has no torch",
            expected="a Python with torch for CUDA, pytest and this tool's packages",
            remedy=f"DI_PYTHON=python3 ./inv {task}, or python3 -m h20_ops.testing.{RUNNERS[task]}",
        )
    command = [sys.executable, "-m", f"h20_ops.testing.{RUNNERS[task]}"]
    for name in filter(None, only.split(",")):
        command += ["--only", name]
    command += ["--select", select] if select else []
    command += ["--commit", commit] if commit else []
    out = sys.stderr if ui.as_json else None
    done = subprocess.run(command, cwd=REPOSITORY, stdout=out, check=False)
    if done.returncode != 0:
        unfit = done.returncode == _NO_GPU
        raise TestsFailed(
            found=f"`{' '.join(command[1:])}` exited {done.returncode}",
            expected="an SM90 GPU and a complete tree" if unfit else "every test to pass",
            remedy="see its lines above, mend what they name, then run the task again",
        )
    return {"command": command[1:], "records": RECORDS[task]}
