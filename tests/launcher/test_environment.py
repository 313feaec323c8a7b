"""./inv makes, keeps and repairs its virtual environment. Every test runs the real launcher."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20 import bootstrap
from dih20.paths import REPOSITORY

Run = Callable[..., subprocess.CompletedProcess[str]]
Lock = Callable[..., None]


def test_the_first_start_makes_the_environment_and_the_next_ones_use_it(
    start: Run, lock_only: Lock, checkout: Path
) -> None:
    first = start("--list")
    assert first.returncode == 0, first.stderr
    assert "setting up .venv" in first.stderr
    assert "doctor" in first.stdout
    second = start("--list")
    assert second.returncode == 0
    assert second.stderr == ""
    assert second.stdout == first.stdout

    lock_only("invoke", "packaging")
    third = start("--list")
    assert "setting up .venv" in third.stderr, "a changed lock was not noticed"
    assert (checkout / ".venv/lib").exists()
    assert list((checkout / ".venv").glob("lib/python3*/site-packages/packaging"))

    python = checkout / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nonexistent/python3")
    fourth = start("--list")
    assert fourth.returncode == 0, fourth.stderr
    assert "setting up .venv" in fourth.stderr, "an environment without a python was not repaired"
    assert fourth.stdout == first.stdout


def test_two_starts_at_once_make_one_environment(
    checkout: Path, lock_only: Lock, tmp_path: Path
) -> None:
    env = {**os.environ, "DI_VENV": str(tmp_path / "shared env")}
    env.pop("PYTHONPATH", None)
    runs = [
        subprocess.Popen(
            [str(checkout / "inv"), "--list"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""
    messages = outputs[0][1] + outputs[1][1]
    assert messages.count("setting up") == 1, messages


def test_a_package_that_is_not_the_locked_file_is_refused_and_nothing_is_stamped(
    start: Run, lock_only: Lock, checkout: Path
) -> None:
    lock = checkout / "requirements/base.lock"
    lines = lock.read_text().splitlines()
    wrong = [lines[0], *(f"    --hash=sha256:{'0' * 64}" for _ in lines[1:2])]
    lock.write_text("\n".join(wrong) + "\n")
    done = start("--list")
    assert done.returncode != 0
    assert "pip could not install base.lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv/.lock-stamp").exists()


def _old_python(folder: Path) -> str:
    """Put a python older than 3.11 into a folder: a real one where there is one, else a script like it."""
    candidates = [Path(p) for p in map(shutil.which, ("python3.10", "python3.9", "python3.8")) if p]
    candidates += sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python3"))
    for candidate in candidates:
        probe = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False)
        if probe.returncode == 0:
            (folder / "python3").symlink_to(candidate)
            return probe.stdout.split()[1].rsplit(".", 1)[0]
    script = folder / "python3"
    script.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.9;; *) exit 1;; esac\n')
    script.chmod(0o755)
    return "3.9"


def test_a_python_that_is_too_old_gets_one_line(
    start: Run, lock_only: Lock, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "dirname", "cksum", "cat"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    version = _old_python(programs)
    done = start("--list", env={"PATH": str(programs)})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"python >= 3.11 is needed, found: {version}; install python3.11 or newer" in done.stderr


def test_no_python_at_all_gets_one_line(start: Run, lock_only: Lock, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "dirname", "cksum", "cat"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    done = start("--list", env={"PATH": str(programs)})
    assert done.returncode == 2
    assert "python >= 3.11 is needed, found: none" in done.stderr


def test_a_folder_of_somebody_elses_is_neither_used_nor_deleted(
    start: Run, lock_only: Lock, tmp_path: Path
) -> None:
    folder = tmp_path / "my thesis"
    folder.mkdir()
    (folder / "chapter 1.txt").write_text("words")
    done = start("--list", env={"DI_VENV": str(folder)})
    assert done.returncode != 0
    assert "is not a virtual environment" in done.stderr
    assert (folder / "chapter 1.txt").read_text() == "words"


def test_a_path_that_cannot_be_an_environment_is_named_with_what_to_set(
    start: Run, lock_only: Lock, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("words")
    for path in (file, file / "env"):
        done = start("--list", env={"DI_VENV": str(path)})
        assert done.returncode == 2
        assert f"inv: no environment can be made at {path}: " in done.stderr
        assert "expected a folder that this user may write" in done.stderr
        assert "Traceback" not in done.stderr
    assert file.read_text() == "words"


def start_bootstrap(folder: Path) -> subprocess.Popen[str]:
    """Start what ./inv starts to have an environment."""
    lock = folder.with_name("base.lock")
    command = [sys.executable, bootstrap.__file__, str(folder), str(lock), "stamp"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def slow_environment(tmp_path: Path) -> Path:
    """An environment whose pip says that it runs, then takes a minute."""
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    python = folder / "bin/python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) ;; *) touch "{tmp_path}/runs"; exec sleep 60;; esac\n'
    )
    python.chmod(0o755)
    return folder


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_interrupt_gets_one_line_and_a_second_start_says_what_it_waits_for(
    slow_environment: Path, tmp_path: Path
) -> None:
    first = start_bootstrap(slow_environment)
    wait_for((tmp_path / "runs").exists)
    second = start_bootstrap(slow_environment)
    assert second.stderr is not None
    waiting = second.stderr.readline()
    assert waiting == f"inv: waiting for {tmp_path}/.env.guard, held by process {first.pid}\n"
    for process in (second, first):
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        assert process.returncode == 130
        assert said.splitlines()[-1].startswith("inv: interrupted; what is half made is completed")
        assert "Traceback" not in said


def test_a_python_given_by_the_user_is_used_as_it_is(start: Run, checkout: Path) -> None:
    done = start("--list", env={"DI_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout
    assert not (checkout / ".venv").exists()


def test_a_python_that_cannot_put_pip_into_an_environment_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, **options: bool) -> None:
        folder.mkdir()
        raise subprocess.CalledProcessError(1, ["python", "-m", "ensurepip"])

    monkeypatch.setattr("dih20.bootstrap.venv.create", fail)
    with pytest.raises(SystemExit, match=r"cannot put pip into .* install python3\.\d+-venv"):
        bootstrap.install(tmp_path / "env", tmp_path / "base.lock", "stamp")
    assert not (tmp_path / "env").exists(), "the half made environment stayed"


def test_listing_tasks_takes_less_than_a_second() -> None:
    """Of processor time: what else this machine does is not what is measured."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(REPOSITORY / "inv"), "--list"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    took = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert 0 < took < 1.0
