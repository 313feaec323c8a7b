"""A build in a host's own engine: inputs go once, steps run there, nothing of a step stays on the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError
from dih20.hosts.ssh import connect
from dih20.image import standin
from dih20.image.archive.normal_archive import NormalArchive, OwnLayer
from dih20.image.archive.normal_config import ImageFrame
from dih20.image.archive.normal_program import program
from dih20.image.build import build_image
from dih20.image.host_normal import HostNormal
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


def test_the_image_gets_its_normal_form_on_the_host_and_is_the_same_as_here(
    host: Any,
    engine: Any,
    second_engine: Any,
    small_lock: Lock,
    stand_in_config: Any,
    make_step: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "mkdir -p /opt/x && echo x > /opt/x/f && ln /opt/x/f /opt/x/g && rm /etc/issue && rm -r /usr/share/doc/bash && mkdir /usr/share/doc/bash && date > /tmp/d\n"
    steps = [make_step("10-x", script), make_step("20-none", "true\n")]

    def build(client: Any, **options: Any) -> tuple[Any, Any]:
        ui = Console(as_json=True)
        made = build_image(ui, client, stand_in_config, small_lock, steps=steps, **options)
        return made, next(step for step in ui.steps if step.verb == "normalise")

    here, _ = build(engine)
    monkeypatch.setenv(
        "DI_CACHE", str(tmp_path / "cache")
    )  # what was learnt here is not known there
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("dih20.image.standin.load", lambda *_: here_base(second_engine))
    monkeypatch.setattr("dih20.image.normal_image.layer_folders", lambda *_: None)
    ui = Console(as_json=True)
    stage, there = HostStaging(ui, host).folder, HostNormal(ui, host)
    made, normal = build(host.docker(), stage=stage, there=there)
    assert normal.details["read"] == "in a container on the host"
    assert made.id == here.id
    assert second_engine.images.get(made.tag).id == here.id
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["build-inputs"]
    assert not second_engine.containers.list(
        all=True, filters={"ancestor": made.step_images[-1][1]}
    )


def here_base(client: Any) -> str:
    return str(next(i.tags[0] for i in client.images.list(name=standin.TAG)))


def test_what_the_program_prints_when_it_fails_is_in_the_error(
    host: Any, second_engine: Any
) -> None:
    frame = ImageFrame(architecture="amd64", os="linux", config={}, base_history=(), steps=("a",))
    archive = NormalArchive(frame=frame, base=[], own=[OwnLayer(diff_id="sha256:x")])
    image = here_base(second_engine)
    with pytest.raises(ImageError, match="exited 1"):
        HostNormal(Console(as_json=True), host).load(archive, image, {})
    assert archive.image_id == ""


def test_the_program_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "normal.zip"
    path.write_bytes(program())
    assert program() == path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "none.json" in done.stderr or "SYS_ADMIN" in done.stderr
    assert "ModuleNotFoundError" not in done.stderr
