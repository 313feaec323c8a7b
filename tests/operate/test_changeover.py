"""The order of a change-over: what is stopped before what is started, whatever goes wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from dih20.console import Console
from dih20.errors import (
    ConnectFailed,
    EngineStartFailed,
    FellBack,
    LeftBehind,
    StartFailed,
    ToolError,
)
from dih20.operate import changeover
from dih20.operate.changeover import Choice, change_over
from dih20.operate.watch import Ready

READY = Ready(seconds=1.0, gate={"state": "passed"}, version={})


class Stage:
    """What happens, in order; `fails` says at which event something is raised instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.fails: dict[str, BaseException] = {}
        monkeypatch.setattr(changeover, "stop_server", lambda ui, s: self.note(f"stop {s.name}"))
        monkeypatch.setattr(changeover, "bring_up", self.bring_up)
        monkeypatch.setattr(changeover, "bring_home", self.bring_home)

    def note(self, event: str) -> None:
        self.events.append(event)
        if event in self.fails:
            raise self.fails[event]

    def bring_up(self, ui: Console, choice: Choice) -> Ready:
        self.note(f"up {choice.server.name}")
        return READY

    def bring_home(self, server: Any, why: str) -> Path:
        self.note(f"evidence {server.name}")
        return Path("/evidence", str(server.name))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def choice(name: str, *, running: bool = True) -> Choice:
    life = SimpleNamespace(is_running=running)
    runner = SimpleNamespace(name="h", require_connected=lambda: None)
    session = SimpleNamespace(runner=runner)
    server: Any = SimpleNamespace(name=name, where="h", life=lambda: life, session=session)
    return Choice(server=server, settings={})


def fault(text: str = "no torch") -> EngineStartFailed:
    return EngineStartFailed(found=text, expected="a start", remedy="mend it")


def change(old: Choice | None) -> Ready:
    return change_over(Console(as_json=True), choice("new"), old)


def test_the_old_server_ends_before_the_new_one_starts(stage: Stage) -> None:
    assert change(choice("old")) is READY
    assert stage.events == ["stop old", "up new"]


def test_a_failure_brings_evidence_home_and_the_old_server_back_gated(stage: Stage) -> None:
    stage.fails["up new"] = fault()
    with pytest.raises(FellBack) as fell:
        change(choice("old"))
    assert stage.events == ["stop old", "up new", "evidence new", "stop new", "up old"]
    assert "no torch" in fell.value.found
    assert "/evidence/new" in fell.value.remedy


def test_an_old_server_that_does_not_come_back_is_said_with_both_evidences(stage: Stage) -> None:
    stage.fails |= {"up new": fault(), "up old": fault("disk full")}
    with pytest.raises(StartFailed) as failed:
        change(choice("old"))
    assert failed.value.exit_code == 86
    assert "no torch" in failed.value.found
    assert "disk full" in failed.value.found
    assert failed.value.details == {
        "evidence": "/evidence/new",
        "evidence_of_the_old": "/evidence/old",
    }


def test_a_new_server_that_cannot_be_ended_never_gets_an_old_one_beside_it(stage: Stage) -> None:
    stuck = LeftBehind(found="process 7 lives", expected="", remedy="reset the GPU")
    stage.fails |= {"up new": fault(), "stop new": stuck}
    with pytest.raises(StartFailed, match="process 7 lives"):
        change(choice("old"))
    assert "up old" not in stage.events


@pytest.mark.parametrize("event", ["stop old", "up new"])
def test_what_the_engine_says_against_a_step_brings_the_old_server_back(
    stage: Stage, event: str
) -> None:
    stage.fails[event] = APIError("409 Conflict")
    with pytest.raises(FellBack, match="409 Conflict"):
        change(choice("old"))
    assert stage.events[-3:] == ["evidence new", "stop new", "up old"]


def test_what_the_engine_says_against_evidence_or_end_is_said_with_the_first_fault(
    stage: Stage,
) -> None:
    stage.fails |= {"up new": fault(), "evidence new": APIError("500"), "stop new": APIError("409")}
    with pytest.raises(StartFailed, match=r"no torch.*could not be ended.*409"):
        change(choice("old"))
    assert "up old" not in stage.events


def test_an_old_server_that_cannot_be_ended_keeps_the_new_one_from_starting(stage: Stage) -> None:
    stage.fails["stop old"] = LeftBehind(found="process 7 lives", expected="", remedy="")
    with pytest.raises(ToolError):
        change(choice("old"))
    assert "up new" not in stage.events


def test_evidence_that_cannot_be_had_does_not_hide_the_first_fault(stage: Stage) -> None:
    lost = ConnectFailed(found="the connection broke", expected="", remedy="")
    stage.fails |= {"up new": fault(), "evidence new": lost}
    with pytest.raises(FellBack) as fell:
        change(choice("old"))
    assert "no torch" in fell.value.found
    assert "none: the connection broke" in fell.value.remedy


def test_an_interrupt_brings_the_old_server_back_and_stays_an_interrupt(stage: Stage) -> None:
    stage.fails["up new"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        change(choice("old"))
    assert stage.events[-1] == "up old"


def test_without_an_old_server_a_failure_says_that_none_serves(stage: Stage) -> None:
    stage.fails["up new"] = fault()
    with pytest.raises(StartFailed, match="no torch") as failed:
        change(None)
    assert "none serves now" in failed.value.expected
    assert stage.events == ["up new", "evidence new", "stop new"]
