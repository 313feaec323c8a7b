"""Processes of one server on this machine: found by the mark that its start left in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "DIH20_START"
_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process; `born` is its start time in clock ticks, so that a reused pid is another one."""

    pid: int
    born: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command[:80]})"


def find(pid: int) -> Process | None:
    """Give a process that lives; a zombie does not, once all its threads have ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    fields = text.rpartition(")")[2].split()
    if has_ended(fields):
        return None
    return Process(pid=pid, born=int(fields[19]), command=command or "?")


def has_ended(stat: Sequence[str]) -> bool:
    """Judge what /proc/PID/stat says from the state on.

    A zombie has, unless it counts more threads than itself: while those end, port and memory are held
    and nobody can have the exit code.
    """
    state, num_threads = stat[0], int(stat[17])
    return state == "X" or (state == "Z" and num_threads <= 1)


def lives(process: Process) -> bool:
    now = find(process.pid)
    return now is not None and now.born == process.born


def marked(instance: str) -> list[Process]:
    """Give every process that was started under an instance: the server, its ranks, and what they started."""
    wanted = f"{MARK}={instance}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    process = find(int(entry.name))
                    found += [process] if process else []
    return found


def end(process: Process, *, wait_s: float) -> bool:
    """End a process by TERM and a bounded wait; say whether that was enough."""
    _signal(process, signal.SIGTERM)
    return _gone([process], wait_s)


def kill(processes: Iterable[Process], *, wait_s: float) -> list[Process]:
    """Kill processes, and give those that live on all the same."""
    chosen = list(processes)
    for process in chosen:
        _signal(process, signal.SIGKILL)
    _gone(chosen, wait_s)
    return [process for process in chosen if lives(process)]


def _signal(process: Process, number: int) -> None:
    if lives(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _gone(processes: Iterable[Process], wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    chosen = list(processes)
    while any(lives(process) for process in chosen):
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)
    return True
