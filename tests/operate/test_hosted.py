"""Serve on a host for real, over SSH and in a private engine: swap, fall back, roll back, stop.

The server in the container is a fake one, so that it can be told how to fail; the rehearsal runs
the same tasks with the real one.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import DockerException
from docker.models.containers import Container

from dih20.config import HostConfig
from dih20.console import Console
from dih20.deploy.apply import deploy
from dih20.deploy.wanted import WantedImage
from dih20.errors import DeployError, FellBack, LeftBehind, NotServing, StartFailed, UnfitToServe
from dih20.operate import hosted_life, hosted_stop, state
from dih20.operate.hosted import on_host
from tests.deploy.stand import wanted_for
from tests.operate.host import fake_wheel, write_configs

pytestmark = [pytest.mark.docker, pytest.mark.ssh]
Put = Callable[[str], str]


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is the server's for the whole test: held by a socket that does not listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def host(
    make_host: Callable[..., HostConfig],
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> HostConfig:
    """A host with a port of its own, described in a configuration of its own."""
    chosen = make_host(ports=[port])
    monkeypatch.setenv("DI_CONFIGS", str(tmp_path / "configs"))
    write_configs(tmp_path / "configs", chosen)
    return chosen


@pytest.fixture
def put(
    host: HostConfig,
    image: WantedImage,
    engine: Any,
    clean_host: Any,
    tmp_path: Path,
    ui: Console,
) -> Put:
    """Give a function that deploys a container whose server acts in one way; gives its id."""

    def deploy_act(act: str) -> str:
        wanted = wanted_for(host, image=image, wheels=(fake_wheel(tmp_path, act),))
        return str(deploy(ui, engine, wanted, replace=True)["container"])

    return deploy_act


def serve(ui: Console, host: HostConfig) -> dict[str, Any]:
    return hosted_life.serve(ui, host.name, canary=True, record=False, only_plan=False)


def status_of(client: Any, name: str) -> tuple[str, str]:
    found = client.containers.get(name)
    return found.id, found.status


def names(client: Any) -> set[str]:
    return {container.name for container in client.containers.list(all=True)}


def test_a_server_is_checked_started_asked_left_alone_and_stopped(
    put: Put, host: HostConfig, clean_host: Any, ui: Console
) -> None:
    first = put("well")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", host.ports[0]))
        taken.listen()
        with pytest.raises(UnfitToServe) as refused:
            serve(ui, host)
    assert f"port {host.ports[0]} on loopback is taken" in refused.value.found
    with pytest.raises(NotServing, match="does not answer"):
        state.ask(ui, host.name, "what?", max_tokens=3)
    told = serve(ui, host)
    assert told["container"] == first
    assert told["gate"] == {"state": "passed"}
    assert told["url"] == f"http://127.0.0.1:{host.ports[0]}"
    assert told["tunnel"].startswith(f"ssh -N -L {host.ports[0]}:127.0.0.1:{host.ports[0]} -p ")
    answer = state.ask(ui, host.name, "what color is the sky?", max_tokens=3)
    assert (answer["text"], answer["verdict"]) == ("blue sky.", "")
    again = serve(ui, host)
    assert again["plan"]["noop"]
    assert again["instance"] == told["instance"]
    seen = state.status(ui, host.name)
    assert seen["start"]["instance"] == told["instance"]
    config = clean_host.containers.get("di-h20").labels["dih20.config"]
    assert seen["version"]["identities"]["config"] == config
    lines = state.logs(ui, host.name, follow=False, rank=None, tail=50)
    assert lines["lines"]
    ended = hosted_stop.stop(ui, host.name, only_plan=False)
    assert (ended["by"], ended["processes"] > 0) == ("TERM", True)
    assert status_of(clean_host, "di-h20") == (first, "exited")
    assert state.status(ui, host.name)["exit_code"] == 0


def test_an_upgrade_takes_over_a_rollback_takes_it_back_and_a_failing_one_falls_back(
    put: Put,
    host: HostConfig,
    clean_host: Any,
    ui: Console,
    own_build_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = put("well")
    serve(ui, host)
    second = put("slow")  # beside the one that serves
    assert status_of(clean_host, "di-h20") == (first, "running")
    for count, left in ((0, {"di-h20", "di-h20-next"}), (1, {"di-h20-previous", "di-h20-next"})):
        with monkeypatch.context() as broken:
            broken.setattr(Container, "rename", _broken_after(count, Container.rename))
            with pytest.raises(DeployError, match="broke off"):
                serve(ui, host)
        assert names(clean_host) == left
    instance = state.status(ui, host.name)["start"]["instance"]
    taken = serve(ui, host)  # finishes the change of names, and lets the server go on
    assert (taken["container"], taken["instance"]) == (second, instance)
    assert status_of(clean_host, "di-h20") == (second, "running")
    assert status_of(clean_host, "di-h20-previous") == (first, "exited")
    back = hosted_life.rollback(ui, host.name, only_plan=False)
    assert back["container"] == first
    assert status_of(clean_host, "di-h20") == (first, "running")
    assert status_of(clean_host, "di-h20-previous") == (second, "exited")

    put("dies")
    with pytest.raises(FellBack) as failed:
        serve(ui, host)
    assert failed.value.exit_code == 87
    assert "exit code 3" in failed.value.found
    (evidence,) = (own_build_folder / "logs").glob("serve-*")
    assert str(evidence) in failed.value.remedy
    kept = {path.name for path in evidence.iterdir()}
    assert {"container.log", "inspect.json", "dmesg.txt", "nvidia-smi.txt", "reason.txt"} <= kept
    assert "CUDA driver version is insufficient" in (evidence / "container.log").read_text()
    assert json.loads((evidence / "inspect.json").read_text())["State"]["ExitCode"] == 3
    assert status_of(clean_host, "di-h20") == (first, "running")
    assert state.ask(ui, host.name, "sky?", max_tokens=3)["text"] == "blue sky."
    instance = state.status(ui, host.name)["start"]["instance"]
    assert instance != back["instance"]  # it was started and gated anew
    assert names(clean_host) == {"di-h20", "di-h20-previous"}


def _broken_after(count: int, rename: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Give a rename of containers that works a number of times."""
    done: list[str] = []

    def renamed(container: Any, name: str) -> None:
        if len(done) == count:
            raise DockerException("the connection broke off")
        rename(container, name)
        done.append(name)

    return renamed


def test_a_first_start_that_fails_says_that_nothing_serves(
    put: Put, host: HostConfig, clean_host: Any, ui: Console
) -> None:
    put("mute")
    with pytest.raises(StartFailed, match="no engine behind this"):
        serve(ui, host)
    assert status_of(clean_host, "di-h20")[1] == "exited"


def test_workers_that_ignore_term_are_killed_proved_gone_and_listed_otherwise(
    put: Put, host: HostConfig, clean_host: Any, ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("stubborn")
    serve(ui, host)
    with on_host(ui, host.name) as session:
        pids = [pid for pid, _ in session.require_server().processes()]
        born = hosted_stop._living(session, [os.getpid()])
        monkeypatch.setattr(hosted_stop, "_FREED_WITHIN_S", 0.5)
        with pytest.raises(LeftBehind, match=f"process {os.getpid()} lives"):
            hosted_stop.prove_gone(session, born)
    assert len(pids) >= 4  # init, the server, two workers in sessions of their own
    monkeypatch.setattr(hosted_stop, "_MARGIN_S", 1)
    monkeypatch.setattr(hosted_stop, "_FREED_WITHIN_S", 30.0)
    ended = hosted_stop.stop(ui, host.name, only_plan=False)
    assert ended["by"] == "KILL"
    assert ended["processes"] == len(pids)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
