"""A removal that takes its time, and names that are not ours to clear: with a scripted engine."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from dih20.deploy import swap
from dih20.errors import ContainerConflict


class ScriptedContainers:
    """Answer `get` from a list of states; when it is used up, the container is gone."""

    def __init__(self, states: list[str], labels: dict[str, str] | None = None) -> None:
        self.states, self.labels, self.removed = states, labels or {}, 0

    def get(self, name: str) -> Any:
        if not self.states:
            raise NotFound("gone")
        state = self.states.pop(0)
        return SimpleNamespace(
            name=name, status=state, short_id="abc", labels=self.labels, remove=self._remove
        )

    def _remove(self, force: bool) -> None:
        self.removed += 1


def client(containers: ScriptedContainers) -> Any:
    return SimpleNamespace(containers=containers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only moves when somebody sleeps."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_a_removal_under_way_is_waited_for(clock: list[float]) -> None:
    swap.wait_until_removed(client(ScriptedContainers(["removing"] * 5)), "di-h20")
    assert 0 < clock[0] < swap.REMOVAL_TIMEOUT_S


def test_a_removal_that_does_not_end_is_an_error_after_a_bounded_wait(clock: list[float]) -> None:
    with pytest.raises(ContainerConflict, match="still being removed after 30 s"):
        swap.wait_until_removed(client(ScriptedContainers(["removing"] * 1000)), "di-h20")
    assert clock[0] < swap.REMOVAL_TIMEOUT_S + 2


def test_a_container_that_is_not_being_removed_is_not_waited_for(clock: list[float]) -> None:
    swap.wait_until_removed(client(ScriptedContainers(["running"])), "di-h20")
    assert clock[0] == 0


def test_a_leftover_that_is_not_ours_is_never_removed() -> None:
    foreign = ScriptedContainers(["exited"], {"dih20.owner": "dih20"})
    with pytest.raises(ContainerConflict, match="is not ours"):
        swap._remove_ours(client(foreign), "di-h20-next")
    assert foreign.removed == 0
    ours = ScriptedContainers(["exited"], {"dih20.owner": "dih20", "dih20.config": "c"})
    swap._remove_ours(client(ours), "di-h20-next")
    assert ours.removed == 1
