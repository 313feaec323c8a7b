"""Naming the rank because of which an exchange failed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dih20.serve.engines.whereabouts import Whereabouts


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is alive, to stand for a rank."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def ranks(folder: Path, count: int = 3) -> list[Whereabouts]:
    return [Whereabouts(folder / "ranks", rank, count) for rank in range(count)]


def pretend(monkeypatch: pytest.MonkeyPatch, where: Whereabouts, pid: int) -> None:
    """Let a record carry another process than this one."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    where._write()
    monkeypatch.undo()


def test_one_that_ended_is_named_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    first, second, _ = ranks(tmp_path)
    pretend(monkeypatch, second, sleeper.pid)
    assert first.gone() == []
    sleeper.kill()  # not waited for: the kernel keeps it as a zombie
    rank, text = first.culprit()
    assert (rank, text) == (1, f"rank 1 (process {sleeper.pid}) has ended")
    assert first.gone() == [1]


def test_one_that_is_stopped_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    first, _, third = ranks(tmp_path)
    pretend(monkeypatch, third, sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    rank, text = first.culprit()
    assert rank == 2
    assert text.endswith("is stopped by a signal")


def test_one_that_stays_behind_is_named_though_it_is_alive(tmp_path: Path) -> None:
    first, second, third = ranks(tmp_path)
    for each in (first, first, second, third, third):
        each.enter()
    rank, text = first.culprit()
    assert rank == 1
    assert "is alive and stays in exchange 1, this rank in 2" in text


def test_who_lost_a_rank_tells_the_others_which_one_it_was(tmp_path: Path) -> None:
    first, second, third = ranks(tmp_path)
    for each in (first, third):
        each.enter()
    assert first.culprit()[0] == 1
    rank, text = third.culprit()
    assert rank == 1
    assert "was lost, says rank 0" in text
    assert second.culprit() == (0, f"rank 0 (process {os.getpid()}) has given this rank up")


def test_when_nobody_is_behind_nobody_is_accused(tmp_path: Path) -> None:
    first, _, _ = ranks(tmp_path)
    began = time.monotonic()
    rank, text = first.culprit()
    assert rank is None
    assert text == "all ranks are alive and in exchange 0"
    assert time.monotonic() - began < 5.0


def test_a_rank_that_has_not_come_yet_is_not_gone_and_not_loaded(tmp_path: Path) -> None:
    first = Whereabouts(tmp_path / "ranks", 0, 2)
    first.loaded()
    assert first.gone() == []
    assert first.not_loaded() == [1]
    Whereabouts(tmp_path / "ranks", 1, 2).loaded()
    assert first.not_loaded() == []
