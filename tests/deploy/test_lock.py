"""One deploy to a host at a time, and what is said when one is in the way."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dih20.deploy import lock
from dih20.deploy.lock import deploy_lock
from dih20.errors import DeployLocked
from dih20.hosts.runner import LocalRunner

HERE = LocalRunner()


def hold(folder: Path, **more: object) -> Path:
    made = folder / ".deploy-lock"
    made.mkdir(parents=True)
    note = {"who": "ops@elsewhere", "pid": 7, "since": int(time.time()), "what": "deploy x", **more}
    (made / "holder").write_text(json.dumps(note))
    return made


def test_the_lock_is_there_while_held_and_gone_after_a_failure(tmp_path: Path) -> None:
    work = tmp_path / "new" / "work dir"
    with pytest.raises(RuntimeError), deploy_lock(HERE, str(work), "deploy x"):
        holder = json.loads((work / ".deploy-lock" / "holder").read_text())
        assert holder["pid"] == os.getpid()
        raise RuntimeError
    assert not (work / ".deploy-lock").exists()


def test_a_second_deploy_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    held = hold(tmp_path)
    with pytest.raises(DeployLocked) as refused, deploy_lock(HERE, str(tmp_path), "deploy y"):
        pass
    assert "ops@elsewhere, pid 7, since 0 min (deploy x)" in refused.value.found
    assert "stale" not in refused.value.found
    assert refused.value.remedy.startswith("wait")
    assert held.exists()


def test_the_lock_of_a_process_that_is_gone_looks_stale(tmp_path: Path) -> None:
    dead = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(dead, 0)
    hold(tmp_path, who=f"ops@{socket.gethostname()}", pid=dead)
    with pytest.raises(DeployLocked) as refused, deploy_lock(HERE, str(tmp_path), "deploy y"):
        pass
    assert f"stale: process {dead} of this machine is gone" in refused.value.found
    assert f"rm -r {tmp_path}/.deploy-lock" in refused.value.remedy


def test_the_lock_of_a_living_process_of_this_machine_does_not_look_stale(tmp_path: Path) -> None:
    hold(tmp_path, who=f"ops@{socket.gethostname()}", pid=os.getpid())
    with pytest.raises(DeployLocked) as refused, deploy_lock(HERE, str(tmp_path), "deploy y"):
        pass
    assert "stale" not in refused.value.found


def test_an_old_lock_looks_stale_and_is_left_in_place(tmp_path: Path) -> None:
    held = hold(tmp_path, since=int(time.time()) - 3 * 3600)
    with pytest.raises(DeployLocked, match="stale: it is older than 2 hours"):
        with deploy_lock(HERE, str(tmp_path), "deploy y"):
            pass
    assert held.exists()


def test_a_lock_without_a_holder_file_is_a_lock_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_NOTE_WITHIN_S", 0.0)
    (tmp_path / ".deploy-lock").mkdir()
    with pytest.raises(DeployLocked, match="no one named"):
        with deploy_lock(HERE, str(tmp_path), "deploy y"):
            pass


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_lock_whose_holder_writes_or_goes_at_this_moment_does_not_look_stale(
    is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the folder and the file in it, and between removing the two."""
    folder = tmp_path / ".deploy-lock"
    folder.mkdir()

    def meanwhile(_: float) -> None:
        folder.rmdir()
        if is_taken:
            hold(tmp_path)

    own = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=meanwhile)
    monkeypatch.setattr(lock, "time", own)
    with pytest.raises(DeployLocked) as refused, deploy_lock(HERE, str(tmp_path), "deploy y"):
        pass
    assert "stale" not in refused.value.found
    assert ("ops@elsewhere" if is_taken else "is not there either") in refused.value.found
