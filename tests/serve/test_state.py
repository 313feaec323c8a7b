"""Phases, progress and how long the last start took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dih20.serve.state import LastStart, State

SUBJECT = {"engine": "paced", "model": "canary", "ranks": 1}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def state(folder: Path | None, clock: Clock, subject: dict[str, Any] = SUBJECT) -> State:
    return State(LastStart(folder, subject), clock)


def started_in(seconds: float, folder: Path) -> None:
    clock = Clock()
    start = state(folder, clock)
    clock.now += seconds
    start.enter("ready")


def test_a_start_expects_what_the_last_one_took(tmp_path: Path) -> None:
    started_in(50.0, tmp_path)
    clock = Clock()
    again = state(tmp_path, clock)
    assert again.eta_s == 50.0
    clock.now += 20
    assert again.eta_s == 30.0
    clock.now += 40
    assert again.eta_s == 0.0, "late is not negative"
    again.enter("ready")
    assert again.eta_s is None


def test_nothing_is_expected_without_a_like_start(tmp_path: Path) -> None:
    assert state(tmp_path, Clock()).eta_s is None
    started_in(50.0, tmp_path)
    assert state(tmp_path, Clock(), SUBJECT | {"ranks": 8}).eta_s is None
    assert state(None, Clock()).eta_s is None


def test_a_broken_file_costs_the_expectation_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "last-start.json").write_text("{half")
    assert state(tmp_path, Clock()).eta_s is None


def test_a_failed_start_teaches_nothing(tmp_path: Path) -> None:
    start = state(tmp_path, Clock())
    start.fail("no weights")
    assert (start.phase, start.reason) == ("failed", "no weights")
    assert state(tmp_path, Clock()).eta_s is None


def test_phases_keep_their_time() -> None:
    clock = Clock()
    start = state(None, clock)
    clock.now += 2
    start.enter("loading")
    clock.now += 3
    start.enter("loading")
    clock.now += 1
    start.enter("gating")
    clock.now += 0.5
    assert start.phases_s == {"starting": 2.0, "loading": 4.0, "gating": 0.5}


def test_any_line_is_progress() -> None:
    clock = Clock()
    start = state(None, clock)
    clock.now += 9
    start.progress("part 1 of 2", 1.7)
    assert (start.progressed, start.line, start.fraction) == (109.0, "part 1 of 2", 1.0)
    start.progress("")
    assert start.line == "part 1 of 2"
