"""Private servers start, say why when they do not, and are gone afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import RehearsalFailed
from dih20.rehearse.dockerd import PrivateEngine
from dih20.rehearse.processes import Server
from dih20.rehearse.sshd import PrivateSshd, free_port


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(holds: Callable[[], bool], timeout_s: float = 10) -> bool:
    """Say whether it came to hold in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def test_a_server_that_dies_while_starting_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = Server(["sh", "-c", "echo cannot bind port >&2; exit 3"], log=log, name="the server")
    with pytest.raises(RehearsalFailed, match=r"ended with 3(.|\n)*cannot bind port"):
        server.wait_until(lambda: False, 10)


def test_a_server_that_never_answers_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    server = Server(["sleep", "60"], log=tmp_path / "log", name="the server")
    with pytest.raises(RehearsalFailed, match="did not answer within 1 s"):
        server.wait_until(lambda: False, 1)
    assert not alive(server.pid)


def test_a_server_that_ignores_term_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 1; done"
    server = Server(["sh", "-c", script], log=tmp_path / "log", name="the server")
    server.wait_until(ready.exists, 10)
    server.stop(timeout_s=1)
    assert not alive(server.pid)


def test_a_server_holds_what_it_was_given_until_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "guard"
    with path.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        server = Server(["sleep", "60"], log=tmp_path / "log", name="the server", keeps=[guard])
    with path.open("w") as second:
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server.stop()
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_missing_program_says_what_installs_it(tmp_path: Path) -> None:
    with pytest.raises(RehearsalFailed, match="no-such-program not found") as raised:
        Server(["no-such-program"], log=tmp_path / "log", name="the server")
    assert "inv rehearse" in raised.value.remedy


def sleeper(tmp_path: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a program that starts a server and prints its id."""
    script = (
        "import time; from pathlib import Path; from dih20.rehearse.processes import Server\n"
        f"server = Server(['sleep', '60'], log=Path({str(tmp_path / 'log')!r}), name='x')\n"
        "print(server.pid, flush=True); time.sleep(60)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def server_of(parent: subprocess.Popen[str]) -> int:
    assert parent.stdout is not None
    return int(parent.stdout.readline())


def test_a_server_ends_when_the_program_that_started_it_is_killed(tmp_path: Path) -> None:
    parent = sleeper(tmp_path)
    pid = server_of(parent)
    runs = Path(f"/proc/{pid}/comm")
    assert wait_until(lambda: runs.read_text() == "sleep\n"), "the signal is asked for before that"
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not alive(pid))


def test_a_server_does_not_start_when_its_program_was_killed_just_before(tmp_path: Path) -> None:
    """The signal at its parent's death is asked for too late then; a slow setpriv stands for that."""
    slow, asked, go_on = tmp_path / "setpriv", tmp_path / "asked", tmp_path / "go-on"
    slow.write_text(
        f"#!/bin/sh\n: >{asked}\nwhile [ ! -e {go_on} ]; do sleep 0.05; done\n"
        f'exec {shutil.which("setpriv")} "$@"\n'
    )
    slow.chmod(0o755)
    parent = sleeper(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    pid = server_of(parent)
    try:
        assert wait_until(asked.exists)
        parent.kill()
        parent.wait()
        go_on.touch()
        assert wait_until(lambda: not alive(pid))
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.docker
def test_an_engine_refuses_a_second_run_on_its_data(private_engine: PrivateEngine) -> None:
    with pytest.raises(RehearsalFailed, match="used by another run"):
        PrivateEngine("again", private_engine.root).__enter__()


@pytest.mark.docker
def test_an_engine_holds_its_data_itself_for_when_its_run_is_killed(
    private_engine: PrivateEngine,
) -> None:
    assert private_engine._server is not None
    held = [file.resolve() for file in Path(f"/proc/{private_engine._server.pid}/fd").iterdir()]
    assert private_engine.root / "in-use" in held


@pytest.mark.docker
def test_an_engine_leaves_no_process_mount_or_socket(tmp_path: Path) -> None:
    with PrivateEngine("short", tmp_path / "engine") as engine:
        assert engine.client().ping()
        socket = Path(engine.url.removeprefix("unix://"))
        assert socket.exists()
        run = socket.parent
    assert not run.exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    running = subprocess.run(["pgrep", "-f", str(run)], capture_output=True, text=True, check=False)
    assert running.stdout == ""


@pytest.mark.docker
def test_an_engine_that_cannot_start_cleans_up_after_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateEngine, "_empty_config", lambda self: tmp_path / "no-such-file")
    before = set(Path("/run").iterdir())
    with pytest.raises(RehearsalFailed, match="no-such-file"):
        PrivateEngine("broken", tmp_path / "engine").__enter__()
    assert not {
        path for path in set(Path("/run").iterdir()) - before if path.name.startswith("dih20-")
    }


@pytest.mark.ssh
def test_an_sshd_whose_port_was_taken_meanwhile_starts_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr("dih20.rehearse.sshd.free_port", lambda: ports.pop(0))
        with PrivateSshd(host_key_types=("ed25519",)) as server:
            assert server.port != taken.getsockname()[1]
            assert f"[127.0.0.1]:{server.port} " in server.known_hosts.read_text()


@pytest.mark.ssh
def test_an_sshd_that_cannot_start_cleans_up_after_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = PrivateSshd(host_key_types=("ed25519",), options={"NoSuchOption": "yes"})
    with pytest.raises(RehearsalFailed, match="NoSuchOption"):
        server.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_free_port_is_none_that_an_outgoing_connection_is_given() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert lowest <= 1024 or free_port() < lowest


@pytest.mark.ssh
def test_the_private_sshd_takes_its_own_key_and_is_known_by_its_own_host_keys(
    sshd: PrivateSshd,
) -> None:
    command: list[Any] = [
        "ssh",
        "-p",
        str(sshd.port),
        "-i",
        sshd.identity_file,
        "-o",
        "BatchMode=yes",
    ]
    command += ["-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o", "IdentitiesOnly=yes"]
    done = subprocess.run(
        [*command, "127.0.0.1", "echo here"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr
