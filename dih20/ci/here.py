"""Run a job's commands on this machine, in the working tree, until the job's time is up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from dih20.ci.ended import Ended
from dih20.console import Console
from dih20.image.build_session import ended_by_signal
from dih20.paths import REPOSITORY

GRACE_S = 20.0  # for tests to end the engines and servers that they started


def run_here(ui: Console, commands: Sequence[Sequence[str]], *, limit_s: float) -> Ended:
    """Run the commands in order; the first that fails, or that is running when the time is up, is the last."""
    deadline = time.monotonic() + limit_s
    out = sys.stderr.fileno() if ui.as_json else None
    for command in commands:
        with ui.step("run", " ".join(command)) as step:
            ended = _run(command, out, deadline)
            step.status = "ok" if ended.is_good else "failed"
        if not ended.is_good:
            return ended
    return Ended(exit_code=0)


def _run(command: Sequence[str], out: int | None, deadline: float) -> Ended:
    # In a process group of its own, so that all of it can be ended; a terminal's interrupt
    # reaches us alone then, and is passed on.
    with ended_by_signal():
        process = subprocess.Popen(
            list(command),
            cwd=REPOSITORY,
            env={**os.environ, "CI": "true"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            process_group=0,
        )
        try:
            return Ended(exit_code=process.wait(max(deadline - time.monotonic(), 0)))
        except subprocess.TimeoutExpired:
            return Ended(exit_code=_end(process), is_overdue=True)
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> int:
    """Interrupt the whole group, kill what is left of it after a while; give the command's exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
