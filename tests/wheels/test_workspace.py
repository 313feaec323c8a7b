"""Two builds of one identity at once: the second waits, and takes what the first one stored."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dih20.wheels.build import Builder
from dih20.wheels.store import Store, StoredWheel
from tests.wheels.binaries import wheel_of
from tests.wheels.test_identity import PARTS


def test_a_second_build_of_an_identity_waits_and_takes_the_stored_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, waits = threading.Event(), threading.Event()
    builds: list[Path] = []

    def build(builder: Builder, wanted: Any, folder: Path, log: Path) -> StoredWheel:
        builds.append(folder)
        started.set()
        assert waits.wait(20), "the second build did not wait"
        built = wheel_of(tmp_path / "built", {"vendor/__init__.py": ""}, tag="py3-none-any")
        return builder.store.add(built, name="vendor", parts=PARTS, verdicts=[], build={})

    monkeypatch.setattr(Builder, "_build", build)
    said: list[str] = []

    def say(line: str, **_: Any) -> None:
        said.append(line)
        waits.set()

    nothing: Any = None
    ui: Any = SimpleNamespace(line=say)
    builder = Builder(
        ui=ui,
        client=nothing,
        facts=nothing,
        lock=nothing,
        store=Store(tmp_path / "wheels"),
        scratch=tmp_path,
    )
    wanted: Any = SimpleNamespace(recipe=SimpleNamespace(name="vendor"), parts=PARTS)
    with ThreadPoolExecutor(2) as runs:
        first = runs.submit(builder.build, wanted)
        assert started.wait(20)
        second = runs.submit(builder.build, wanted)
        assert first.result(30) == second.result(30)
    assert len(builds) == 1
    assert len(said) == 1
    assert f"vendor-{PARTS.identity[:12]}" in said[0]
