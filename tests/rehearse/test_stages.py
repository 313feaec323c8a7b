"""Settings, stages, and what a rehearsal says of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dih20.config import load_host, load_image
from dih20.console import Console
from dih20.errors import ImageError, UsageError
from dih20.lock.files import LockedFile
from dih20.rehearse import host_packages
from dih20.rehearse.host_packages import HostPackage, ensure_host_packages
from dih20.rehearse.rehearsal import make_plan, wheels_of
from dih20.rehearse.settings import HOST, Places, environment, write_configs
from dih20.rehearse.stages import Stages
from dih20.rehearse.stand_in_lock import moved_packages


def deb(name: str, version: str) -> LockedFile:
    return LockedFile(
        name=name,
        version=version,
        filename=f"{name}.deb",
        sha256="0" * 64,
        size_bytes=1,
        kind="deb",
    )


def test_the_rehearsal_host_is_a_valid_host_without_gpus_on_the_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd = SimpleNamespace(
        port=2222, user="me", identity_file=tmp_path / "key", known_hosts=tmp_path / "known"
    )
    engine = SimpleNamespace(url="unix:///run/x/docker.sock")
    places = Places(root=tmp_path)
    write_configs(places, cast(Any, engine), cast(Any, sshd))
    monkeypatch.setenv("DI_CONFIGS", str(places.configs))
    host = load_host(HOST)
    assert (host.gpus, host.port, host.is_rehearsal) == (0, 2222, True)
    assert host.docker_socket == "/run/x/docker.sock"
    assert load_image("di-h20").base == "stand-in"
    assert load_host("nv-h20").gpus == 8, "the committed hosts are copied as they are"


def test_environment_is_given_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_ONE", "before")
    monkeypatch.delenv("DI_TWO", raising=False)
    with pytest.raises(KeyError), environment(DI_ONE="during", DI_TWO="during"):
        assert (os.environ["DI_ONE"], os.environ["DI_TWO"]) == ("during", "during")
        raise KeyError
    assert os.environ["DI_ONE"] == "before"
    assert "DI_TWO" not in os.environ


def test_a_failed_stage_is_in_the_table_with_its_time_and_the_error_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = Stages(Console())
    with stages.stage("lock", "./inv lock") as stage:
        stage.showed = "nothing moved"
    with pytest.raises(ImageError), stages.stage("image", "./inv build-image"):
        raise ImageError(found="a", expected="b", remedy="c")
    stages.table()
    assert [(s.name, s.status) for s in stages.done] == [("lock", "ok"), ("image", "failed")]
    shown = capsys.readouterr().out
    assert "nothing moved" in shown
    assert "failed" in shown
    json.dumps([s.as_dict() for s in stages.done])


def test_moved_packages_are_named_with_both_versions() -> None:
    before = [deb("git", "1"), deb("gone", "1"), deb("same", "1")]
    now = [deb("git", "2"), deb("same", "1"), deb("new", "3")]
    assert moved_packages(before, now) == ["git 1 -> 2", "gone 1 -> absent", "new absent -> 3"]


def test_the_plan_names_what_is_started_and_that_it_is_stopped(tmp_path: Path) -> None:
    plan = make_plan(Places(root=tmp_path), vendor=True, serve=True)
    text = " ".join(f"{a.verb} {a.target}" for a in plan.actions)
    assert "deep_ep" in text
    assert "private sshd" in text
    assert plan.actions[-1].verb == "stop"
    assert "deep_ep" not in " ".join(wheels_of(vendor=False))


def test_missing_programs_without_root_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = (HostPackage(package="pkg-a", program="no-such-a", purpose="x"),)
    monkeypatch.setattr(host_packages, "NEEDED", wanted)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="no-such-a not found") as raised:
        ensure_host_packages(Console())
    assert "pkg-a" in raised.value.remedy
