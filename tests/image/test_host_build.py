"""A build in a host's own engine: inputs go once, steps run there, nothing of a step stays on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError
from dih20.hosts.ssh import connect
from dih20.image import standin
from dih20.image.build import build_image
from dih20.image.host_staging import HostStaging
from dih20.lock import Lock
from tests.hosts.places import host_for

pytestmark = [pytest.mark.docker, pytest.mark.ssh]


@pytest.fixture
def host(
    sshd: Any, private_second_engine: Any, second_engine: Any, standin_image: str, tmp_path: Path
) -> Any:
    standin.load(Console(as_json=True), second_engine)
    socket = private_second_engine.url.removeprefix("unix://")
    config = host_for(sshd, docker_socket=socket, work_dir=str(tmp_path / "work"))
    with connect(config) as runner:
        yield runner


def test_the_steps_run_in_the_hosts_engine_and_inputs_go_once(
    host: Any,
    second_engine: Any,
    small_lock: Lock,
    stand_in_config: Any,
    real_steps: Any,
    tmp_path: Path,
) -> None:
    steps = [real_steps["30-headers"]]

    def build(ui: Console) -> Any:
        stage = HostStaging(ui, host).folder
        return build_image(ui, host.docker(), stand_in_config, small_lock, steps=steps, stage=stage)

    first = Console(as_json=True)
    built = build(first)
    assert second_engine.images.get(built.tag).id == built.id
    sent = [step.note for step in first.steps if step.verb == "transfer"]
    assert sent

    second_engine.images.remove(built.tag, force=True)
    again = Console(as_json=True)
    build(again)
    assert [step.target for step in again.steps if step.verb == "transfer"] == []
    assert [p.name for p in (tmp_path / "work" / "build-inputs").iterdir()] == ["files"]


def test_a_failing_step_leaves_no_folder_and_no_container_on_the_host(
    host: Any,
    second_engine: Any,
    small_lock: Lock,
    stand_in_config: Any,
    make_step: Any,
    tmp_path: Path,
) -> None:
    before = len(second_engine.containers.list(all=True))
    ui = Console(as_json=True)
    with pytest.raises(ImageError, match="10-fails"):
        build_image(
            ui,
            host.docker(),
            stand_in_config,
            small_lock,
            steps=[make_step("10-fails", "ls /mnt; exit 4\n")],
            stage=HostStaging(ui, host).folder,
        )
    assert len(second_engine.containers.list(all=True)) == before
    assert [p.name for p in (tmp_path / "work" / "build-inputs").iterdir()] == ["files"]
