"""A Docker client through SSH: the same objects as locally, against a real engine."""

from __future__ import annotations

import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import EngineError
from dih20.hosts.ssh import connect
from dih20.rehearse.sshd import PrivateSshd
from tests.hosts.places import host_for

pytestmark = [pytest.mark.ssh, pytest.mark.docker]


def socket_of(private: Any) -> str:
    return str(private.url).removeprefix("unix://")


def test_the_client_through_ssh_sees_what_the_engine_sees(
    sshd: PrivateSshd,
    private_second_engine: Any,
    second_engine: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with connect(host_for(sshd, docker_socket=socket_of(private_second_engine))) as host:
        client = host.docker()
        assert client.info()["ID"] == second_engine.info()["ID"]
        assert client.api.api_version == second_engine.api.api_version
        assert host.docker() is client
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "docker.sock").is_socket()
    assert list(tmp_path.iterdir()) == []


def test_an_import_and_its_bytes_go_through_whole(
    sshd: PrivateSshd, private_second_engine: Any, second_engine: Any, tmp_path: Path
) -> None:
    import os
    import tarfile

    big = tmp_path / "data"
    big.write_bytes(os.urandom(24 << 20))
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.add(big, "data")
    with connect(host_for(sshd, docker_socket=socket_of(private_second_engine))) as host:
        host.docker().api.import_image_from_file(str(tmp_path / "root.tar"), repository="tunnelled")
        exported = b"".join(host.docker().api.get_image("tunnelled:latest"))
    assert len(exported) > 24 << 20
    assert big.read_bytes() in exported
    second_engine.images.remove("tunnelled:latest")


def test_an_engine_that_is_not_there_is_said_in_dockers_own_words(
    sshd: PrivateSshd, tmp_path: Path
) -> None:
    with connect(host_for(sshd, docker_socket=str(tmp_path / "none.sock"))) as host:
        with pytest.raises(EngineError) as failed:
            host.docker()
    assert "none.sock" in failed.value.found
    assert "docker_socket" in failed.value.remedy


def test_words_that_come_after_the_connection_ended_are_still_told(
    sshd: PrivateSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.hosts.docker_tunnel import Tunnel

    listen = Tunnel._listen

    def late(tunnel: Tunnel, channel: Any) -> None:
        time.sleep(0.5)
        listen(tunnel, channel)

    monkeypatch.setattr(Tunnel, "_listen", late)
    with connect(host_for(sshd, docker_socket=str(tmp_path / "none.sock"))) as host:
        with pytest.raises(EngineError) as failed:
            host.docker()
    assert "none.sock" in failed.value.found


def test_many_calls_take_one_session_of_the_connection(
    sshd: PrivateSshd, private_second_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.hosts.docker_tunnel import Tunnel

    carried: list[object] = []
    carry = Tunnel._carry

    def counted(tunnel: Tunnel, connection: Any) -> None:
        carried.append(connection)
        carry(tunnel, connection)

    monkeypatch.setattr(Tunnel, "_carry", counted)
    with connect(host_for(sshd, docker_socket=socket_of(private_second_engine))) as host:
        client = host.docker()
        for _ in range(4):
            client.containers.list(all=True)
            client.images.list()
            client.info()
    assert len(carried) <= 3  # at most two to negotiate the version, then one for all


def test_when_every_session_is_taken_the_next_call_fails_and_does_not_hang(
    sshd: PrivateSshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import ExitStack

    from dih20.errors import HostError
    from dih20.hosts.ssh import SESSIONS

    monkeypatch.setattr("dih20.hosts.ssh._SESSION_TIMEOUT_S", 1.0)
    with connect(host_for(sshd)) as host, ExitStack() as held:
        for _ in range(SESSIONS):
            held.enter_context(host.session())
        with pytest.raises(HostError, match="sessions of the connection"):
            host.run(["true"])
