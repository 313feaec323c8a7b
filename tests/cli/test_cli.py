"""The decorator of tasks, by real runs of invoke on a small collection."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY

TASKS = '''
from typing import Any
from dih20.cli import Run, task
from dih20.errors import PinMoved

@task(help={"name": "whom to greet"})
def greet(run: Run, name: str = "you", times: int = 1) -> dict[str, Any]:
    """Greet somebody."""
    with run.ui.step("greet", name):
        pass
    return {"greeted": [name] * times}

@task(changes=True)
def change(run: Run, target: str) -> dict[str, Any]:
    """Change something, or only say so."""
    return {"target": target, "planned": run.plan}

@task()
def fail(run: Run) -> None:
    """Fail as users see it."""
    raise PinMoved(found="the pin", expected="the lock", remedy="run it")

@task(name="break-down")
def break_down(run: Run) -> None:
    """Fail as it never should."""
    {}["no such key"]

@task()
def stop(run: Run) -> None:
    """Be interrupted."""
    raise KeyboardInterrupt
'''

Invoke = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Invoke:
    (tmp_path / "tasks.py").write_text(TASKS)

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PYTHONPATH": str(REPOSITORY),
            "DI_BUILD": str(tmp_path / "build"),
            "PATH": "/usr/bin:/bin",
        }
        command = [sys.executable, "-m", "invoke", "--search-root", str(tmp_path), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return call


def test_a_task_gives_exactly_one_json_object_on_stdout(run: Invoke) -> None:
    done = run("greet", "--name", "host", "--times", "2", "--json")
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["ok"] is True
    assert out["task"] == "greet"
    assert out["result"] == {"greeted": ["host", "host"]}
    assert [step["target"] for step in out["steps"]] == ["host"]
    assert "greet host" in done.stderr


def test_only_a_task_that_changes_something_has_plan(run: Invoke) -> None:
    planned = run("change", "--target", "x", "--plan", "--json")
    assert json.loads(planned.stdout)["result"] == {"target": "x", "planned": True}
    applied = run("change", "x", "--json")
    assert json.loads(applied.stdout)["result"] == {"target": "x", "planned": False}
    refused = run("greet", "--plan")
    assert refused.returncode != 0
    assert "No idea what '--plan' is" in refused.stderr


def test_an_error_of_ours_becomes_three_parts_and_its_exit_code(run: Invoke) -> None:
    done = run("fail")
    assert done.returncode == 6
    assert done.stdout == "error: the pin\n  expected: the lock\n  next:     run it\n"
    assert "Traceback" not in done.stderr


def test_an_option_that_is_no_number_is_named_without_a_trace(run: Invoke) -> None:
    done = run("greet", "--times", "2x")
    assert done.returncode == 2
    assert done.stdout.startswith("error: --times 2x\n  expected: a whole number\n")
    assert "Traceback" not in done.stderr


def test_an_error_with_json_is_in_the_object_too(run: Invoke) -> None:
    done = run("fail", "--json")
    assert done.returncode == 6
    out = json.loads(done.stdout)
    assert out["ok"] is False
    assert out["error"]["kind"] == "PinMoved"
    assert out["error"]["next"] == "run it"
    assert "error: the pin" in done.stderr


def test_a_fault_of_the_program_leaves_a_log_and_no_traceback(run: Invoke, tmp_path: Path) -> None:
    done = run("break-down")
    assert done.returncode == 70
    assert "Traceback" not in done.stdout + done.stderr
    assert "KeyError: 'no such key'" in done.stdout
    (log,) = (tmp_path / "build/logs").glob("fault-break-down-*.log")
    assert str(log) in done.stdout
    assert "in break_down" in log.read_text()


def test_an_interrupt_is_said_and_exits_130(run: Invoke) -> None:
    done = run("stop")
    assert done.returncode == 130
    assert "interrupted" in done.stdout
    assert "Traceback" not in done.stderr
