"""A change of names that broke off is finished: with a scripted engine that only knows names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from dih20.console import Console
from dih20.deploy import swap
from dih20.deploy.names import finish_names
from dih20.errors import ContainerConflict
from dih20.hosts.runner import LocalRunner

NAME = "di-h20"
OURS = {"dih20.owner": "dih20", "dih20.config": "c" * 64}
WAITS = "/bin/sh -euc exec python3 -m dih20.serve --settings x di-launch"
SERVES = "python3 -m dih20.serve --settings x"


@dataclass(kw_only=True)
class Made:
    """A container; `does` is the command in it, "" where it is stopped."""

    engine: Engine
    id: str
    does: str
    labels: dict[str, str]

    @property
    def status(self) -> str:
        return "running" if self.does else "exited"

    @property
    def name(self) -> str:
        return next(name for name, made in self.engine.made.items() if made is self)

    short_id = property(lambda self: self.id)

    def top(self, ps_args: str) -> dict[str, Any]:
        return {"Processes": [["1", WAITS], ["7", self.does]]}

    def rename(self, name: str) -> None:
        assert name not in self.engine.made, "409: the name is in use"
        self.engine.made[name] = self.engine.made.pop(self.name)

    def remove(self, force: bool) -> None:
        del self.engine.made[self.name]


class Engine:
    """Containers by name; the id of each is the letter that the test gave it."""

    def __init__(self, **states: tuple[str, str]) -> None:
        self.made: dict[str, Made] = {}
        for name, (letter, does) in states.items():
            full = f"{NAME}-{name.replace('_', '-')}" if name != "current" else NAME
            self.made[full] = Made(engine=self, id=letter, does=does, labels=dict(OURS))
        self.containers = self

    def get(self, name: str) -> Made:
        if name not in self.made:
            raise NotFound(name)
        return self.made[name]

    def finish(self, work_dir: Path) -> dict[str, str]:
        """Give who has which name afterwards."""
        given: Any = (self, SimpleNamespace(container=NAME, work_dir=str(work_dir)))
        finish_names(Console(as_json=True), LocalRunner(), *given)
        assert not (work_dir / ".deploy-lock").exists()
        return {name.removeprefix(NAME): made.id for name, made in self.made.items()}


def test_a_serving_container_whose_predecessor_gave_the_name_up_takes_it(tmp_path: Path) -> None:
    engine = Engine(previous=("a", ""), next=("b", SERVES))
    assert engine.finish(tmp_path) == {"": "b", "-previous": "a"}


def test_a_container_that_only_waits_gets_no_name_without_its_checks(tmp_path: Path) -> None:
    for does in (WAITS, "python3 -c 'import torch'", ""):
        engine = Engine(previous=("a", ""), next=("b", does))
        assert engine.finish(tmp_path) == {"-previous": "a", "-next": "b"}


def test_an_exchange_of_a_rollback_is_finished_after_either_break(tmp_path: Path) -> None:
    first = Engine(previous=("a", SERVES), rolled_back=("b", ""))
    assert first.finish(tmp_path) == {"": "a", "-previous": "b"}
    second = Engine(current=("a", SERVES), rolled_back=("b", ""))
    assert second.finish(tmp_path) == {"": "a", "-previous": "b"}


def test_names_that_are_in_order_or_not_ours_are_left_alone(tmp_path: Path) -> None:
    whole = Engine(current=("a", ""), previous=("b", ""), next=("c", SERVES))
    assert whole.finish(tmp_path) == {"": "a", "-previous": "b", "-next": "c"}
    foreign = Engine(next=("c", SERVES))
    foreign.made[f"{NAME}-next"].labels.clear()
    assert foreign.finish(tmp_path) == {"-next": "c"}


def test_a_container_that_serves_is_never_cleared_away_as_a_leftover() -> None:
    engine: Any = Engine(current=("a", ""), next=("b", SERVES))
    with pytest.raises(ContainerConflict, match="serves: a change-over to it broke off"):
        swap._remove_ours(engine, f"{NAME}-next")
    assert f"{NAME}-next" in engine.made
