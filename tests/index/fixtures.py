"""Fixtures for tests that download: local indexes, mirrors that name them, an empty cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dih20.config.mirrors import Mirrors, PipMirrors
from tests.index.local_index import LocalIndex, serving

StartIndex = Callable[..., LocalIndex]


@pytest.fixture
def start_index() -> Iterator[StartIndex]:
    """Start a LocalIndex; every one is stopped at the end of the test."""
    with ExitStack() as stack:

        def start(certificate: Path | None = None, **how: Any) -> LocalIndex:
            return stack.enter_context(serving(LocalIndex(**how), certificate=certificate))

        yield start


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test alone; no proxy or CA setting of the machine reaches a test."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    folder = tmp_path / "cache"
    monkeypatch.setenv("DI_CACHE", str(folder))
    return folder


def mirrors_to(*indexes: LocalIndex, **more: Any) -> Mirrors:
    """Mirrors that ask these indexes in this order and nothing else."""
    settings = {"timeout_s": 5, "retries": 1, **more}
    return Mirrors(pip=PipMirrors(indexes=tuple(i.url for i in indexes)), **settings)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed so far, in one line, by a Console made in the test itself (it keeps its stdout)."""
    return " ".join(capsys.readouterr().out.split())
