"""The SSH connection against a real sshd on loopback."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paramiko
import pytest

from dih20.errors import CommandFailed, ConnectFailed, HostError
from dih20.hosts.exchange import Kept, OutputTooLong
from dih20.hosts.runner import run_all
from dih20.hosts.ssh import SshRunner, command_line, connect
from dih20.rehearse.sshd import PrivateSshd
from tests.hosts.places import host_for

pytestmark = pytest.mark.ssh


@pytest.fixture
def runner(sshd: PrivateSshd) -> Iterator[SshRunner]:
    with connect(host_for(sshd)) as connection:
        yield connection


def test_a_flood_on_both_streams_comes_back_whole_with_its_exit_code(runner: SshRunner) -> None:
    script = "head -c 10485760 /dev/zero & head -c 10485760 /dev/zero >&2; wait; exit 7"
    result = runner.run(["sh", "-c", script], check=False, timeout_s=60)
    assert (result.exit_code, len(result.stdout), len(result.stderr)) == (7, 10 << 20, 10 << 20)


def test_stdin_larger_than_the_window_comes_back_while_it_is_still_being_sent(
    runner: SshRunner,
) -> None:
    data = os.urandom(9 << 20)
    assert runner.run(["cat"], stdin=data).stdout == data


def test_a_command_that_reads_no_stdin_still_gives_its_exit_code(runner: SshRunner) -> None:
    assert runner.run(["sh", "-c", "exit 3"], stdin=b"x" * (5 << 20), check=False).exit_code == 3


def test_output_beyond_the_limit_is_an_error_and_not_a_full_memory() -> None:
    kept = Kept(limit_bytes=10)
    kept(b"123456")
    with pytest.raises(OutputTooLong):
        kept(b"123456")


def test_arguments_arrive_as_they_were_given(runner: SshRunner) -> None:
    awkward = ["it's", 'a "b"', "$HOME", "a\nb", "", "*", "中文"]
    assert runner.run(["printf", "%s|", *awkward]).text == "|".join(awkward) + "|"


def test_variables_reach_the_command_although_sshd_accepts_none(runner: SshRunner) -> None:
    env = {"DOCKER_HOST": "unix:///a b.sock"}
    assert runner.run(["printenv", "DOCKER_HOST"], env=env).text == "unix:///a b.sock\n"
    assert command_line(["a", "b c"], {"X": "1 2"}) == "env 'X=1 2' a 'b c'"


def test_a_script_stops_at_the_first_failing_command_with_its_exit_code(
    runner: SshRunner, tmp_path: Path
) -> None:
    mark = tmp_path / "third-ran"
    with pytest.raises(CommandFailed) as failed:
        run_all(runner, [["true"], ["no-such-command-here"], ["touch", str(mark)]])
    assert "command 2 of 3" in failed.value.found
    assert "exited 127" in failed.value.found
    assert not mark.exists()


def test_a_command_past_its_time_is_an_error_at_once(runner: SshRunner) -> None:
    started = time.monotonic()
    with pytest.raises(CommandFailed, match="still running after 1 s"):
        runner.run(["sleep", "30"], timeout_s=1)
    assert time.monotonic() - started < 5


def test_a_command_ended_by_a_signal_is_not_taken_for_a_success(runner: SshRunner) -> None:
    with pytest.raises(CommandFailed, match="a signal ended it"):
        runner.run(["sh", "-c", "kill -KILL $$"])


def test_parallel_work_shares_one_connection(runner: SshRunner, sshd: PrivateSshd) -> None:
    with ThreadPoolExecutor(24) as pool:
        ports = set(
            pool.map(lambda _: runner.run(["sh", "-c", "echo $SSH_CLIENT"]).text, range(24))
        )
    assert len(ports) == 1


def test_a_session_that_sshd_frees_late_is_waited_for_and_one_that_stays_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = PrivateSshd(host_key_types=("ed25519",), options={"MaxSessions": "1"})
    with one as server, connect(host_for(server)) as host:
        with host.session() as held:
            held.exec_command("sleep 1")
            assert host.run(["echo", "later"]).text == "later\n", "refused while the first one ends"
        with host.session() as held:
            held.exec_command("sleep 60")
            monkeypatch.setattr("dih20.hosts.ssh._FREED_WITHIN_S", 0.2)
            with pytest.raises(HostError, match="refused another session") as caught:
                host.run(["echo", "never"])
    assert "MaxSessions" in caught.value.remedy


def test_a_refusal_whose_reason_another_thread_took_is_still_a_refusal(
    runner: SshRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_session = runner._transport.open_session
    refusals = [paramiko.SSHException("Unable to open channel."), paramiko.ChannelException(2, "x")]

    def refused_twice(**how: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return open_session(**how)

    monkeypatch.setattr(runner._transport, "open_session", refused_twice)
    assert runner.run(["echo", "after"]).text == "after\n"
    assert refusals == []


def test_a_connection_that_breaks_is_told_from_a_command_that_fails() -> None:
    with PrivateSshd(host_key_types=("ed25519",)) as server, connect(host_for(server)) as host:
        parent = host.run(["sh", "-c", "echo $PPID"]).text.strip()
        with pytest.raises(ConnectFailed, match="broke"):
            host.run(["sh", "-c", f"kill -KILL {parent}; sleep 20"], timeout_s=15)
