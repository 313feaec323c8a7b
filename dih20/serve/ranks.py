"""The engine's processes: started under guards, listened to, ended to the last descendant."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from dih20.serve.engines import guard
from dih20.serve.engines.wire import Unpacker, pack
from dih20.serve.state import Phase

Message = dict[str, Any]


class _Pipe(asyncio.BufferedProtocol):
    """Hands what comes through a socket to a function; None at its end.

    The buffer is kept: asyncio's other kind of protocol allocates a quarter megabyte per read.
    """

    def __init__(self, take: Callable[[memoryview | None], None]) -> None:
        self._take, self._buffer = take, memoryview(bytearray(1 << 18))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self._take(None)


class RankProcess:
    """One rank and its guard."""

    def __init__(self, rank: int, hear: Callable[[RankProcess, Message], None]) -> None:
        self.rank, self._hear = rank, hear
        self.pid: int | None = None
        self.guard: subprocess.Popen[bytes] | None = None
        self.info: dict[str, Any] | None = None
        self.memory: tuple[int, int] | None = None
        self.exit_code: int | None = None
        self.steps, self.fatal, self.killed_because = 0, "", ""
        self.phase: Phase = "starting"
        self.tail: list[str] = []
        self.left: list[int] = []
        self.ended = asyncio.Event()
        self._unpacker, self._told = Unpacker(), b""

    async def start(self, first: Message, environment: dict[str, str]) -> None:
        """Start the guard, which starts the rank."""
        loop = asyncio.get_running_loop()
        control, guard_end = socket.socketpair()
        ours, rank_end = socket.socketpair()
        for buffered in (ours, rank_end):
            buffered.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        command = [sys.executable, "-I", "-S", guard.__file__, str(guard_end.fileno())]
        command += [f"rank {self.rank}", "--", sys.executable, "-m"]
        command += ["dih20.serve.engines.process", str(rank_end.fileno())]
        self.guard = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(guard_end.fileno(), rank_end.fileno()),
            start_new_session=True,
            env=environment,
        )
        guard_end.close()
        rank_end.close()
        self._control, _ = await loop.connect_accepted_socket(lambda: _Pipe(self._told_by), control)
        self._socket, _ = await loop.connect_accepted_socket(lambda: _Pipe(self._heard), ours)
        self.send(first)

    def send(self, message: Message) -> None:
        if not self._socket.is_closing():
            self._socket.write(pack(message))

    def kill(self, because: str = "") -> None:
        """Have the guard end everything of this rank now. because: told with its loss."""
        if not self._control.is_closing():
            self.killed_because = self.killed_because or because
            self._control.write_eof()

    def _heard(self, data: memoryview | None) -> None:
        if data is None:
            self._hear(self, {"t": "gone"})
            return
        for message in self._unpacker.feed(data):
            self._hear(self, message)

    def _told_by(self, data: memoryview | None) -> None:
        """Take what the guard tells; its end is the end of all of the rank."""
        if data is not None:
            *lines, self._told = (self._told + bytes(data)).split(b"\n")
            for line in lines:
                self._note(json.loads(line))
            return
        assert self.guard is not None
        asyncio.get_running_loop().create_task(self._reap(self.guard))

    def _note(self, told: Message) -> None:
        if "line" in told:
            self._hear(self, {"t": "line", "line": told["line"]})
        if "exit" in told:
            self.exit_code, self.tail, self.left = told["exit"], told["tail"], told["left"]

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            await asyncio.sleep(0.005)
        until = time.monotonic() + 10.0
        while end_strays() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        self.ended.set()
        self._hear(self, {"t": "ended"})

    def describe(self) -> dict[str, Any]:
        guard_pid = self.guard.pid if self.guard else None
        return {
            "rank": self.rank,
            "pid": self.pid,
            "guard_pid": guard_pid,
            "phase": "ended" if self.ended.is_set() else self.phase,
            "steps": self.steps,
            "exit_code": self.exit_code,
        }


GUARDS: set[int] = set()  # pids; anything else below us in another session is a stray


def end_strays() -> int:
    """Kill what a guard that was itself killed has left to us; give how many there were.

    They are in another session than ours: each guard began one. Killing one can bring its children
    to us, so only a look that finds none is the last.
    """
    found = 0
    for pid in guard.children(os.getpid()):
        try:
            if pid not in GUARDS and os.getsid(pid) != os.getsid(0):
                found += 1
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            continue  # it ended by itself
    return found
