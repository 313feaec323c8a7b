"""Shared fixtures: private engines, the stand-in base, a private sshd.

Each is real and made for this run; nothing here touches an engine or sshd that is running.
Under CI a skipped docker or ssh test fails the run: a test that did not run proves nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.paths import cache_dir

# What a shell starts in the background ignores an interrupt, and so would programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def ui() -> Console:
    return Console(as_json=False)


def _private_engine(name: str) -> Iterator[Any]:
    from dih20.rehearse.dockerd import PrivateEngine

    parent = cache_dir() / "tests"
    parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    try:
        with PrivateEngine(name, root) as engine:
            yield engine
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def private_engine() -> Iterator[Any]:
    """A PrivateEngine: .url, .client(), .root."""
    yield from _private_engine("engine")


@pytest.fixture(scope="session")
def engine(private_engine: Any) -> Any:
    """A Docker SDK client of a private engine that lives for the whole run."""
    return private_engine.client()


@pytest.fixture(scope="session")
def private_second_engine() -> Iterator[Any]:
    yield from _private_engine("second")


@pytest.fixture(scope="session")
def second_engine(private_second_engine: Any) -> Any:
    """A client of another private engine: the receiver, or the host."""
    return private_second_engine.client()


@pytest.fixture(scope="session")
def standin_image(engine: Any) -> str:
    """The reference of the stand-in base, loaded in `engine`."""
    from dih20.config import load_mirrors
    from dih20.fetch import fetch_files
    from dih20.image import standin
    from dih20.lock import Lock

    ui, lock = Console(as_json=True), Lock.load()
    fetch_files(
        ui, lock.base_debs("stand-in"), load_mirrors(), what="packages of the stand-in base"
    )
    return standin.load(ui, engine, lock)


@pytest.fixture(scope="session")
def sshd() -> Iterator[Any]:
    """A PrivateSshd: .port, .user, .identity_file, .known_hosts."""
    from dih20.rehearse.sshd import PrivateSshd

    with PrivateSshd() as server:
        yield server


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    must_run = any(item.get_closest_marker(mark) for mark in ("docker", "ssh"))
    if report.skipped and must_run and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped under CI: {report.longrepr}"
