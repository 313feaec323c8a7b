"""A host for deploys: a private sshd, and a second engine that holds the stand-in base already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.config import HostConfig
from dih20.console import Console
from dih20.deploy.wanted import WantedImage
from dih20.rehearse.sshd import PrivateSshd
from tests.deploy.stand import make_image
from tests.hosts.places import host_for


@pytest.fixture(scope="session")
def host_engine(second_engine: Any, standin_image: str) -> Any:
    """The host's engine, which holds the base: so only what is ours has to travel."""
    from dih20.image import standin

    standin.load(Console(as_json=True), second_engine)
    return second_engine


@pytest.fixture(scope="session")
def image(engine: Any, standin_image: str) -> WantedImage:
    """The image to deploy, in this machine's engine."""
    return make_image(engine, standin_image)


@pytest.fixture(scope="session")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("host") / "work"


@pytest.fixture
def make_host(
    sshd: PrivateSshd, host_engine: Any, private_second_engine: Any, work_dir: Path
) -> Callable[..., HostConfig]:
    """Give the host's configuration; keyword arguments override keys."""
    socket = str(private_second_engine.url).removeprefix("unix://")

    def make(**more: Any) -> HostConfig:
        return host_for(
            sshd, docker_socket=socket, work_dir=str(work_dir), is_rehearsal=True, **more
        )

    return make


@pytest.fixture(autouse=True)
def own_build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))


@pytest.fixture
def clean_host(host_engine: Any) -> Iterator[Any]:
    """The host's engine without any container, before and after."""

    def sweep() -> None:
        for container in host_engine.containers.list(all=True):
            container.remove(force=True)

    sweep()
    yield host_engine
    sweep()
