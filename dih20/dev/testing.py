"""Run pytest and the linters with what they need in place."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from typing import Any

from dih20 import groups
from dih20.console import Console
from dih20.dev.selection import Selection
from dih20.errors import TestsFailed
from dih20.paths import REPOSITORY

LINTERS = (
    ["ruff", "format", "--check", "."],
    ["ruff", "check", "."],
    ["mypy"],
)


def run_tests(ui: Console, wanted: Selection) -> dict[str, Any]:
    """Install the groups, prepare the host, run pytest; a skipped docker or ssh test is a failure."""
    from dih20.rehearse.host_packages import ensure_host_packages

    for group in wanted.groups:
        groups.ensure(ui, group)
    ensure_host_packages(ui, wanted.without)
    return _run(ui, [sys.executable, "-m", "pytest", *wanted.options()])


def run_linters(ui: Console) -> dict[str, Any]:
    """Run each linter; the first that complains ends the task with its own lines above."""
    groups.ensure(ui, "dev")
    for linter in LINTERS:
        assert importlib.util.find_spec(linter[0]), f"{linter[0]} is not in the dev lock"
        _run(ui, [sys.executable, "-m", *linter])
    return {"linters": [" ".join(linter) for linter in LINTERS]}


def _run(ui: Console, command: list[str]) -> dict[str, Any]:
    started = time.monotonic()
    out = sys.stderr if ui.as_json else None
    done = subprocess.run(command, cwd=REPOSITORY, env={**os.environ}, stdout=out, check=False)
    shown = " ".join(["python", *command[1:]])
    if done.returncode != 0:
        raise TestsFailed(
            found=f"`{shown}` exited {done.returncode}",
            expected="exit code 0",
            remedy="mend what its lines above name, then run the task again",
        )
    return {"command": shown, "seconds": round(time.monotonic() - started, 1)}
