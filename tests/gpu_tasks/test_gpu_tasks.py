"""inv gpu-test and gpu-bench: the plan they print, the command they run, how they fail."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import TestsFailed, UsageError
from dih20.gpu.run import run_on_gpu


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[list[str]]]:
    """Replace the subprocess by one that exits as told; gives the commands it was asked for."""

    def exits(code: int) -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
            commands.append(command)
            return subprocess.CompletedProcess(command, code)

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
        monkeypatch.setenv("DI_PYTHON", "python3")
        return commands

    return exits


Started = Callable[[int], list[list[str]]]


def test_a_plan_names_the_files_and_starts_nothing(ui: Console, started: Started) -> None:
    commands = started(0)
    plan = run_on_gpu(ui, "gpu-bench", only="mla_decode", commit="", only_plan=True)
    assert commands == []
    targets = [action["target"] for action in plan["actions"]]
    assert targets == ["h20_ops.testing.run_gpu_bench for mla_decode", "bench/results/<card>/"]


def test_a_selection_replaces_no_record(ui: Console, started: Started) -> None:
    started(0)
    plan = run_on_gpu(ui, "gpu-test", only="", commit="", select="page", only_plan=True)
    assert [action["needed"] for action in plan["actions"]] == [True, False]


def test_the_runner_is_started_with_every_option(ui: Console, started: Started) -> None:
    commands = started(0)
    run_on_gpu(ui, "gpu-test", only="sparse_mla_prefill,sparse_mla_decode", commit="abc")
    assert commands == [
        [sys.executable, "-m", "h20_ops.testing.run_gpu_tests"]
        + ["--only", "sparse_mla_prefill", "--only", "sparse_mla_decode", "--commit", "abc"]
    ]


@pytest.mark.parametrize(
    ("code", "expected"), [(1, "every test to pass"), (2, "an SM90 GPU and a complete tree")]
)
def test_a_failure_is_never_an_exit_code_of_zero(
    ui: Console, started: Started, code: int, expected: str
) -> None:
    started(code)
    with pytest.raises(TestsFailed) as caught:
        run_on_gpu(ui, "gpu-test", only="", commit="")
    assert caught.value.expected == expected and f"exited {code}" in caught.value.found


def test_a_python_without_torch_is_named_with_the_way_out(
    ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("DI_PYTHON", "python3")
    with pytest.raises(UsageError) as caught:
        run_on_gpu(ui, "gpu-test", only="", commit="")
    assert "has no torch" in caught.value.found
    assert "DI_PYTHON=python3 ./inv gpu-test" in caught.value.remedy


def test_the_tools_own_environment_gets_torch_first(
    ui: Console, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = started(0)
    ensured: list[str] = []
    monkeypatch.delenv("DI_PYTHON")
    monkeypatch.setattr("dih20.groups.ensure", lambda _, group: ensured.append(group))
    run_on_gpu(ui, "gpu-test", only="", commit="")
    assert ensured == ["dev", "torch"] and len(commands) == 1
