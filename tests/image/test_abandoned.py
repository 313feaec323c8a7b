"""What a killed build or job left goes; what another one is at work with stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dih20.image.abandoned import job_labels, remove_jobs, remove_steps, step_name

NOW = 1_767_225_600  # 2026-01-01
LIMIT_S = 600.0


class Engine:
    """Holds containers by name: their age in seconds and their labels."""

    def __init__(self, **ages: int) -> None:
        self.held = {name.replace("_", "-"): age for name, age in ages.items()}
        self.labels: dict[str, str] = {}
        self.containers = SimpleNamespace(list=self._list)

    def info(self) -> dict[str, str]:
        return {"SystemTime": "2026-01-01T08:00:00.123456789+08:00"}

    def _list(self, **_: Any) -> list[Any]:
        return [
            SimpleNamespace(
                attrs={"Names": [f"/{name}"], "Created": NOW - age, "Labels": self.labels},
                remove=lambda name=name, **_: self.held.pop(name),
            )
            for name, age in self.held.items()
        ]


def test_steps_of_this_holder_go_at_any_age_and_those_of_others_when_overdue() -> None:
    ours, theirs, old = (step_name(holder) for holder in ("aa", "aab", "bb"))
    engine: Any = Engine(**{ours: 1, theirs: 1, old: 3600 + 700, "my-step": 10**6})
    assert remove_steps(engine, "aa", LIMIT_S) == 2
    assert list(engine.held) == [theirs, "my-step"]


def test_jobs_go_when_they_are_older_than_they_may_become() -> None:
    engine: Any = Engine(working=3600 + 500, left=3600 + 700)
    engine.labels = job_labels("wheel-build", LIMIT_S)
    assert remove_jobs(engine, "wheel-build") == 1
    assert list(engine.held) == ["working"]
