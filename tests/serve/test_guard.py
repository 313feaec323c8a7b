"""Nothing of a rank outlives its guard or the gateway (F53)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.serve.engines import guard
from tests.serve.running import is_alive

# Starts a child in a session of its own that ignores TERM, says both pids, then does as told.
RANK = """
import os, signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
stray = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print("pids", os.getpid(), stray.pid, flush=True)
{act}
"""


class Guarded:
    """A guard over RANK, and the gateway's end of its socket."""

    def __init__(self, tmp_path: Path, act: str) -> None:
        ours, theirs = socket.socketpair()
        kept, given = socket.socketpair()
        self.control, self.kept, self.log = ours, kept, tmp_path / "log"
        command = [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), "rank 3", "--"]
        command += [sys.executable, "-c", RANK.format(act=act), str(given.fileno())]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(), given.fileno()),
                stdout=log,
                start_new_session=True,
            )
        theirs.close()
        given.close()

    def pids(self) -> list[int]:
        wait_until(lambda: "pids" in self.log.read_text())
        line = next(line for line in self.log.read_text().splitlines() if "pids" in line)
        return [int(word) for word in line.split()[-2:]]

    def told(self) -> dict[str, Any]:
        """Give the guard's last message, when it has ended."""
        self.control.settimeout(60)
        data = b""
        while more := self.control.recv(1 << 16):
            data += more
        self.process.wait(60)
        last: dict[str, Any] = json.loads(data.splitlines()[-1])
        return last


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hears(control: socket.socket, line: str) -> bool:
    """Listen until this line is told, for ten seconds."""
    control.settimeout(10)
    data = b""
    while {"line": line} not in [json.loads(each) for each in data.split(b"\n")[:-1]]:
        try:
            data += control.recv(1 << 16)
        except TimeoutError:
            return False
    return True


def gone(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def test_a_rank_that_ends_takes_all_with_it_and_its_code_is_told(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "print('no weights'); sys.exit(3)")
    told = guarded.told()
    assert (told["exit"], told["left"]) == (3, [])
    assert told["tail"][-1] == "no weights"
    assert gone(guarded.pids())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_rank_is_told_by_its_signal(tmp_path: Path, number: signal.Signals) -> None:
    guarded = Guarded(tmp_path, "time.sleep(600)")
    os.kill(guarded.pids()[0], number)
    assert guarded.told()["exit"] == -number
    assert gone(guarded.pids())


def test_a_gateway_that_is_gone_ends_all(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "time.sleep(600)")
    pids = guarded.pids()
    guarded.control.close()
    wait_until(lambda: gone(pids))
    assert guarded.process.wait(60) == 0


def test_a_request_to_end_gets_the_last_lines(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "print('at work', flush=True); time.sleep(600)")
    wait_until(lambda: "at work" in guarded.log.read_text())
    guarded.control.shutdown(socket.SHUT_WR)
    assert guarded.told()["tail"][-1] == "at work"
    assert gone(guarded.pids())


def test_a_rank_dies_with_its_guard(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "time.sleep(600)")
    rank, stray = guarded.pids()
    guarded.process.kill()
    guarded.process.wait()
    wait_until(lambda: gone([rank]))
    os.kill(stray, signal.SIGKILL)  # it went to this process's reaper; the gateway would end it


def test_the_last_line_of_a_burst_is_told_though_the_rank_says_nothing_more(tmp_path: Path) -> None:
    """Lines that come soon after a told one wait: the last of them must not wait for another."""
    act = "print('a', flush=True); time.sleep(0.05); print('the last', flush=True); time.sleep(600)"
    guarded = Guarded(tmp_path, act)
    assert hears(guarded.control, "the last")
    pids = guarded.pids()
    guarded.control.close()
    wait_until(lambda: gone(pids))


def test_a_flood_of_output_is_copied_whole_and_the_tail_stays_small(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "sys.stdout.write(('x' * 99 + chr(10)) * 100_000); sys.exit(0)")
    told = guarded.told()
    assert len(told["tail"]) == 60
    lines = guarded.log.read_bytes().splitlines()
    assert len(lines) == 100_001
    assert all(line.startswith(b"[rank 3] ") for line in lines)


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "sys.stdout.write('y' * 3_000_000); sys.exit(0)")
    (last,) = guarded.told()["tail"][1:]
    assert len(last) < 5_000
    assert last.endswith("bytes cut")
    assert guarded.log.stat().st_size < 10_000
