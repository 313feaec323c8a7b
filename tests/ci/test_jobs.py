"""The table of jobs: its commands are tasks of this repository, and running them says what happened."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.ci.ended import Ended
from dih20.ci.here import run_here
from dih20.ci.jobs import Job, find_job, load_jobs
from dih20.ci.running import list_jobs, run_job
from dih20.ci.times import read_times, shown_time
from dih20.console import Console
from dih20.errors import ConfigError, TestsFailed, UsageError
from dih20.paths import REPOSITORY

_FLAGS = """
import json, tasks
print(json.dumps({name: [flag for argument in tasks.namespace[name].get_arguments() for flag in argument.names]
                  for name in tasks.namespace.task_names}))
"""


@pytest.fixture(autouse=True)
def own_build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and logs of a test go to its own folder."""
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))


def table(monkeypatch: pytest.MonkeyPatch, **jobs: dict[str, Any]) -> None:
    """Put other jobs in force."""
    base = {"says": "x", "when": "change", "runner": ["r"], "as_root": False, "minutes": 1}
    made = {name: Job.model_validate({**base, **job}) for name, job in jobs.items()}
    for module in ("jobs", "running"):
        monkeypatch.setattr(f"dih20.ci.{module}.load_jobs", lambda: made)


def test_the_jobs_are_those_that_were_asked_for() -> None:
    assert list(load_jobs()) == ["lint", "test", "docker", "ssh", "vendor", "reproducible", "gpu"]
    assert load_jobs()["vendor"].when == "weekly"
    assert load_jobs()["gpu"].is_self_hosted


def test_every_command_is_a_task_with_options_that_it_has() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FLAGS], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    flags: dict[str, list[str]] = json.loads(done.stdout)
    for name, job in load_jobs().items():
        for command in (*job.commands(in_image=False), *job.commands(in_image=True)):
            task, *options = command[1:]
            assert task in flags, (name, command)
            known = {word.strip("_").replace("_", "-") for word in flags[task]}
            used = {word.removeprefix("--") for word in options if word.startswith("--")}
            assert used <= known, (name, command)


def test_paths_that_jobs_name_exist() -> None:
    for name, job in load_jobs().items():
        for command in (*job.commands(in_image=False), *job.commands(in_image=True)):
            if "--path" in command:
                for path in command[command.index("--path") + 1].split(","):
                    assert (REPOSITORY / path).exists(), (name, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": ["make test"]}, "make test"),
        ({"run": ["./inv test; rm -r x"]}, "rm -r x"),
        ({"run": []}, "run"),
        ({"minutes": 400}, "400"),
        ({"runner": ["self-hosted"]}, "would run code of pull requests"),
        ({"wen": "weekly"}, "did you mean 'when'"),
    ],
)
def test_a_table_with_a_fault_names_it(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    import yaml

    values = yaml.safe_load((REPOSITORY / "ci/jobs.yaml").read_text())
    values["jobs"]["lint"] |= change
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        load_jobs(path)
    assert said in caught.value.found


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Put a task runner in force that notes what it is asked; two of its tasks fail."""
    runner = tmp_path / "inv"
    runner.write_text(
        '#!/bin/sh\necho "$1 CI=$CI" >> ran\ncase $1 in bad) exit 61;; timeout) exit 124;; esac\n'
    )
    runner.chmod(0o755)
    monkeypatch.setattr("dih20.ci.here.REPOSITORY", tmp_path)
    return lambda: (tmp_path / "ran").read_text().splitlines()


def test_a_job_runs_its_commands_in_order_and_its_time_is_kept(
    ui: Console, monkeypatch: pytest.MonkeyPatch, ran: Callable[[], list[str]]
) -> None:
    table(monkeypatch, good={"run": ["./inv good", "./inv also-good"]})
    result = run_job(ui, "good", in_image=False, plan_only=False)
    assert ran() == ["good CI=true", "also-good CI=true"]
    assert result["where"] == "on this machine"
    kept = read_times()["good"]["on this machine"]
    assert (kept["exit_code"], kept["seconds"] >= 0) == (0, True)
    assert "on this machine" in shown_time("good")


@pytest.mark.parametrize(("task", "code"), [("bad", 61), ("timeout", 124)])
def test_a_job_that_fails_stops_there_and_is_kept_as_failed(
    ui: Console, monkeypatch: pytest.MonkeyPatch, ran: Callable[[], list[str]], task: str, code: int
) -> None:
    table(monkeypatch, bad={"run": [f"./inv {task}", "./inv never"]})
    with pytest.raises(TestsFailed, match=f"job bad on this machine exited {code} after"):
        run_job(ui, "bad", in_image=False, plan_only=False)
    assert ran() == [f"{task} CI=true"]
    assert shown_time("bad").endswith("failed")


def test_a_job_is_ended_with_all_it_started_when_its_time_is_up(
    ui: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dih20.ci.here.GRACE_S", 0.2)
    deaf = f"trap '' INT; sleep 300 & echo $! > {tmp_path}/pid; wait"
    started = time.monotonic()
    ended = run_here(ui, [["true"], ["sh", "-c", deaf], ["false"]], limit_s=2)
    assert ended.is_overdue
    assert time.monotonic() - started < 100
    sleeping = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    deadline = time.monotonic() + 10
    while sleeping.exists() and sleeping.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline, "a process that the job started still runs"
        time.sleep(0.05)


def test_a_job_that_took_too_long_says_so(ui: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    table(monkeypatch, slow={"run": ["./inv slow"]})
    late = Ended(exit_code=-2, is_overdue=True)
    monkeypatch.setattr("dih20.ci.running.run_here", lambda ui, commands, limit_s: late)
    with pytest.raises(TestsFailed, match="slow on this machine took longer than 1 minutes"):
        run_job(ui, "slow", in_image=False, plan_only=False)


def test_a_plan_of_a_job_runs_nothing(ui: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dih20.ci.running.run_here", None)
    plan = run_job(ui, "vendor", in_image=False, plan_only=True)
    assert [a["target"] for a in plan["actions"]] == list(load_jobs()["vendor"].run)
    assert read_times() == {}


def test_a_job_that_needs_root_says_so(ui: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dih20.ci.running.os.geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="user id 1000 runs job docker") as caught:
        run_job(ui, "docker", in_image=False, plan_only=False)
    assert caught.value.remedy == "sudo ./inv ci --run docker"


def test_an_unknown_job_and_one_that_cannot_run_in_the_image_name_those_that_can() -> None:
    with pytest.raises(UsageError, match="no job 'lnt'") as caught:
        find_job("lnt", in_image=False)
    assert "lint, test, docker, ssh, vendor, reproducible, gpu" in caught.value.expected
    with pytest.raises(UsageError, match="job docker cannot run inside the CI image") as caught:
        find_job("docker", in_image=True)
    assert "lint" in caught.value.expected


def test_the_list_holds_every_job(ui: Console, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(list_jobs(Console(as_json=False))["jobs"]) == list(load_jobs())
    shown = capsys.readouterr().out
    assert all(f"│ {name} " in shown for name in load_jobs())
    assert "never run here" in shown
