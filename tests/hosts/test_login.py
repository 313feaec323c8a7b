"""Getting in: host keys, our keys, jump hosts and servers that hang up, against a real sshd."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dih20.errors import AuthFailed, ConnectFailed, HostKeyRefused
from dih20.hosts.ssh import connect
from dih20.rehearse.sshd import PrivateSshd, free_port
from tests.hosts.places import host_for

pytestmark = pytest.mark.ssh


def test_an_unknown_host_key_is_refused_with_what_to_run(sshd: PrivateSshd, tmp_path: Path) -> None:
    empty = tmp_path / "known"
    empty.write_text("")
    config = host_for(sshd, known_hosts=str(empty))
    with pytest.raises(HostKeyRefused) as refused, connect(config):
        pass
    assert f"[127.0.0.1]:{sshd.port}" in refused.value.found
    assert empty.read_text() == ""
    fingerprint = refused.value.remedy.split("--accept-host-key ")[1].split("`")[0]
    with connect(config, accept_host_key=fingerprint) as accepted:
        assert accepted.run(["echo", "in"]).text == "in\n"
    with connect(config) as known:
        assert known.run(["echo", "again"]).text == "again\n"


def test_a_swapped_host_key_is_a_hard_refusal_with_both_fingerprints(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    only = ("ed25519",)
    with (
        PrivateSshd(port=first, host_key_types=only) as one,
        PrivateSshd(port=second, host_key_types=only) as two,
    ):
        both = tmp_path / "known"
        both.write_text(one.known_hosts.read_text() + two.known_hosts.read_text())
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(both)], check=True, capture_output=True)
        assert "127.0.0.1" not in both.read_text()
        for server in (one, two):
            with connect(host_for(server, known_hosts=str(both))) as host:
                assert host.run(["true"]).ok
        swapped = tmp_path / "swapped"
        swapped.write_text(one.known_hosts.read_text().replace(f":{first} ", f":{second} "))
        with (
            pytest.raises(HostKeyRefused) as refused,
            connect(host_for(two, known_hosts=str(swapped))),
        ):
            pass
    assert "CHANGED" in refused.value.found
    assert refused.value.found.count("SHA256:") == 1
    assert refused.value.expected.count("SHA256:") == 1


def test_a_server_with_rsa_and_ed25519_is_known_by_whichever_is_on_file(
    sshd: PrivateSshd, tmp_path: Path
) -> None:
    for kind in ("ssh-rsa", "ssh-ed25519"):
        only = tmp_path / kind
        lines = sshd.known_hosts.read_text().splitlines(keepends=True)
        only.write_text("".join(one for one in lines if f" {kind} " in one))
        with connect(host_for(sshd, known_hosts=str(only))) as host:
            assert host.run(["true"]).ok


def test_nothing_listening_is_said_with_place_and_remedy(sshd: PrivateSshd) -> None:
    port = free_port()
    with pytest.raises(ConnectFailed) as failed, connect(host_for(sshd, port=port)):
        pass
    assert f"[127.0.0.1]:{port}: connection refused" in failed.value.found


@pytest.fixture
def locked_key(sshd: PrivateSshd, tmp_path: Path) -> Path:
    """The key that the server takes, encrypted with a passphrase."""
    key = tmp_path / "locked"
    key.write_bytes(sshd.identity_file.read_bytes())
    key.chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "right horse", "-f", str(key)], check=True
    )
    key.with_name("locked.pub").write_bytes(sshd.identity_file.with_suffix(".pub").read_bytes())
    return key


def test_a_wrong_passphrase_names_the_key_file(
    sshd: PrivateSshd, locked_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("DI_SSH_PASSPHRASE", "wrong horse")
    with (
        pytest.raises(AuthFailed) as failed,
        connect(host_for(sshd, identity_file=str(locked_key))),
    ):
        pass
    assert failed.value.found == f"passphrase wrong for {locked_key}"


def test_the_right_passphrase_opens_the_key(
    sshd: PrivateSshd, locked_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("DI_SSH_PASSPHRASE", "right horse")
    with connect(host_for(sshd, identity_file=str(locked_key))) as host:
        assert host.run(["true"]).ok


def test_an_encrypted_key_without_a_way_to_open_it_says_so(
    sshd: PrivateSshd, locked_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("DI_SSH_PASSPHRASE", raising=False)
    with (
        pytest.raises(AuthFailed, match="is encrypted, and there is no terminal"),
        connect(host_for(sshd, identity_file=str(locked_key))),
    ):
        pass


def test_an_encrypted_key_is_taken_from_the_agent_that_holds_it(
    sshd: PrivateSshd, locked_key: Path, full_agent: None
) -> None:
    subprocess.run(["ssh-add", "-q", str(sshd.identity_file)], check=True, capture_output=True)
    with connect(host_for(sshd, identity_file=str(locked_key))) as host:
        assert host.run(["true"]).ok


def test_a_file_that_is_no_key_is_named_as_such(sshd: PrivateSshd, tmp_path: Path) -> None:
    key = tmp_path / "not-a-key"
    key.write_text("hello\n")
    with (
        pytest.raises(AuthFailed, match="not a private key"),
        connect(host_for(sshd, identity_file=str(key))),
    ):
        pass


@pytest.fixture
def full_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that holds eight keys which the server does not take."""
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        for number in range(8):
            key = tmp_path / f"agent-{number}"
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            subprocess.run(make, check=True)
            subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        yield
    finally:
        agent.terminate()
        agent.wait(10)


def test_with_an_identity_file_no_key_of_the_agent_is_offered(full_agent: None) -> None:
    with PrivateSshd(options={"MaxAuthTries": "3"}, host_key_types=("ed25519",)) as server:
        with connect(host_for(server)) as host:
            assert host.run(["true"]).ok


def test_an_agent_with_too_many_keys_is_named_as_the_reason(
    full_agent: None, tmp_path: Path
) -> None:
    with PrivateSshd(options={"MaxAuthTries": "3"}, host_key_types=("ed25519",)) as server:
        config = host_for(server).model_copy(update={"identity_file": None})
        with pytest.raises(AuthFailed) as failed, connect(config):
            pass
    assert "MaxAuthTries" in failed.value.found
    assert "identity_file" in failed.value.remedy


def test_six_connections_at_once_get_through_a_server_that_takes_two() -> None:
    with PrivateSshd(options={"MaxStartups": "2"}, host_key_types=("ed25519",)) as server:

        def log_in(_: int) -> str:
            with connect(host_for(server)) as host:
                return host.run(["echo", "in"]).text

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(log_in, range(6))) == ["in\n"] * 6


def test_a_server_that_always_hangs_up_before_its_banner_is_given_up(
    sshd: PrivateSshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    calls: list[int] = []

    def hang_up() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            calls.append(1)
            connection.close()

    threading.Thread(target=hang_up, daemon=True).start()
    monkeypatch.setattr("dih20.hosts.transport._FIRST_PAUSE_S", 0.01)
    with (
        pytest.raises(ConnectFailed) as failed,
        connect(host_for(sshd, port=listener.getsockname()[1])),
    ):
        pass
    listener.close()
    assert "server dropped us before banner (MaxStartups?)" in failed.value.found
    assert 2 <= len(calls) <= 10


def test_a_jump_host_is_gone_through(
    sshd: PrivateSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host inner\n  HostName 127.0.0.1\n  ProxyJump gate\n"
        f"Host gate\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n"
        f"  IdentityFile {sshd.identity_file}\n  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    monkeypatch.setattr("dih20.hosts.ssh_target.USER_CONFIG", config)
    with (
        PrivateSshd(host_key_types=("ed25519",)) as inner,
        connect(host_for(inner, address="inner", port=inner.port)) as host,
    ):
        client = host.run(["sh", "-c", "echo $SSH_CLIENT"]).text.split()
    assert client[0] == "127.0.0.1"
