from __future__ import annotations

from pathlib import Path

import pytest

from dih20.errors import CompilerCrash, CompilerKilled, WheelError
from dih20.wheels.failures import as_error, read_failure
from dih20.wheels.jobs import GB, bounded

JOBS = bounded(cores=2, memory_limit_bytes=24 * GB, requested=48)
NINJA = ["[1/4] nvcc -c a.cu -o a.o", "[3/4] nvcc -c topk.cu -o topk.o"]

KILLED = [
    [
        "FAILED: [code=137] topk.o ",
        "nvcc -c topk.cu -o topk.o",
        "ninja: build stopped: subcommand failed.",
    ],
    ["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"],
    ["g++: fatal error: Killed signal terminated program cc1plus", "compilation terminated."],
    ["error: command '/usr/bin/g++' failed with exit code -9"],
    ["Killed"],
]
CRASHED = [
    [
        "FAILED: [code=139] topk.o ",
        "nvcc -c topk.cu -o topk.o",
        "ninja: build stopped: subcommand failed.",
    ],
    ["nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)"],
    ["topk.cu:12:3: internal compiler error: Segmentation fault"],
    ["error: command '/usr/bin/g++' failed with exit code -11"],
    ["Segmentation fault (core dumped)"],
]


def _error(lines: list[str], exit_code: int = 1) -> WheelError:
    failure = read_failure(NINJA + lines, exit_code)
    return as_error(
        failure, name="vendor", jobs=JOBS, nvcc="nvcc 13.0.88", log=Path("/logs/vendor.log")
    )


@pytest.mark.parametrize("lines", KILLED)
def test_a_killed_compiler_is_named_with_file_jobs_and_limit(lines: list[str]) -> None:
    error = _error(lines)
    assert isinstance(error, CompilerKilled)
    for part in ("likely for memory", "topk.cu", "2 job(s)", "24.0 GB"):
        assert part in error.found


@pytest.mark.parametrize("lines", CRASHED)
def test_a_crashed_compiler_is_named_with_file_and_nvcc_version(lines: list[str]) -> None:
    error = _error(lines)
    assert isinstance(error, CompilerCrash)
    for part in ("crash", "topk.cu", "nvcc 13.0.88"):
        assert part in error.found
    assert "fewer jobs do not change this" in error.expected


def test_an_out_of_memory_container_counts_as_killed_without_any_line() -> None:
    assert isinstance(_error([], exit_code=137), CompilerKilled)


def test_a_plain_error_is_neither_and_shows_the_compilers_own_line() -> None:
    error = _error(['topk.cu(12): error: identifier "foo" is undefined', "ninja: build stopped."])
    assert type(error) is WheelError
    assert 'topk.cu(12): error: identifier "foo" is undefined' in error.found
    assert "vendor.log" in error.remedy


@pytest.mark.parametrize(
    "line",
    [
        "src/signal_handler.cpp: compiled",
        "warning: unused variable 'killed_jobs'",
        "-Werror=return-type -c a.cu",
        "copying deep_gemm/testing/segfault_notes.md",
    ],
)
def test_ordinary_lines_are_no_sign_of_a_kill_or_a_crash(line: str) -> None:
    failure = read_failure([line], 1)
    assert not failure.killed
    assert not failure.crashed


def test_what_pip_wraps_around_the_message_is_left_out() -> None:
    failure = read_failure(
        [
            '  topk.cu(12): error: identifier "foo" is undefined',
            "  error: subprocess-exited-with-error",
            "  × python setup.py bdist_wheel did not run successfully.",
            '  "ERROR: Can not execute `setup.py` since setuptools failed to import in "',
            "  ERROR: Failed building wheel for vendor",
        ],
        1,
    )
    assert failure.lines == ('topk.cu(12): error: identifier "foo" is undefined',)


def test_a_log_without_error_lines_shows_its_end() -> None:
    assert read_failure([f"step {i}" for i in range(50)], 1).lines[-1] == "step 49"


def test_at_most_twelve_lines_are_shown_and_none_twice() -> None:
    failure = read_failure([f"a.cu({i % 20}): error: bad" for i in range(60)], 1)
    assert failure.lines[-1] == "... and 8 more"
    assert len(set(failure.lines)) == len(failure.lines) == 13
