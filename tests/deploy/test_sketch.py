"""A deploy planned before there is an image, to a host that may not answer either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_host
from dih20.console import Console
from dih20.deploy.sketch import sketch_plan
from dih20.deploy.start import deploy_to
from dih20.errors import ConnectFailed, EngineError
from dih20.rehearse.sshd import free_port


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")


def host_file(tmp_path: Path, **settings: Any) -> str:
    values = {
        "name": "silent",
        "address": "127.0.0.1",
        "gpus": 8,
        "work_dir": "/data/di",
        **settings,
    }
    path = tmp_path / "silent.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return str(path)


def test_every_step_of_a_sketch_is_unknown() -> None:
    plan = sketch_plan(load_host("nv-h20"))
    assert {action.mark for action in plan.actions} == {"?"}
    assert not plan.is_noop


@pytest.mark.usefixtures("no_engine")
def test_without_image_and_host_the_plan_is_shown_and_then_the_connection_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = host_file(tmp_path, port=free_port())
    with pytest.raises(ConnectFailed):
        deploy_to(Console(), host, only_plan=True)
    assert "? create container di-h20" in capsys.readouterr().out


@pytest.mark.usefixtures("no_engine")
def test_a_deploy_that_is_meant_fails_on_the_missing_engine_before_the_host_is_asked(
    tmp_path: Path,
) -> None:
    with pytest.raises(EngineError):
        deploy_to(Console(), host_file(tmp_path, port=free_port()))


@pytest.mark.ssh
@pytest.mark.usefixtures("no_engine")
def test_with_a_host_that_answers_the_plan_ends_with_what_is_missing_here(
    tmp_path: Path, sshd: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    host = host_file(
        tmp_path,
        port=sshd.port,
        user=sshd.user,
        identity_file=sshd.identity_file,
        known_hosts=sshd.known_hosts,
    )
    with pytest.raises(EngineError, match="no socket"):
        deploy_to(Console(), host, only_plan=True)
    assert "? start container di-h20" in capsys.readouterr().out
