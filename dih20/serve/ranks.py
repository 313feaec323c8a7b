"""The engine's processes: started under guards, listened to, ended to the last descendant."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dih20.serve.engines import guard
from dih20.serve.engines.wire import Unpacker, pack
from dih20.serve.log import say
from dih20.serve.settings import Settings

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
        self.steps, self.fatal = 0, ""
        self.phase = "starting"
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
        command = [sys.executable, "-S", guard.__file__, str(guard_end.fileno())]
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

    def kill(self) -> None:
        """Have the guard end everything of this rank now."""
        if not self._control.is_closing():
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


_guards: set[int] = set()


def end_strays() -> int:
    """Kill what a guard that was itself killed has left to us; give how many there were.

    They are in another session than ours: each guard began one. Killing one can bring its children
    to us, so only a look that finds none is the last.
    """
    found = 0
    for pid in guard.children(os.getpid()):
        try:
            if pid not in _guards and os.getsid(pid) != os.getsid(0):
                found += 1
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            continue  # it ended by itself
    return found


class Fleet:
    """All ranks of one start."""

    def __init__(self, settings: Settings, hear: Callable[[RankProcess, Message], None]) -> None:
        self._settings = settings
        self.ranks = [RankProcess(rank, hear) for rank in range(settings.ranks)]
        self._folder = tempfile.TemporaryDirectory(prefix="dih20-serve-")
        self._wakes, self._stopped = 0, False

    async def start(self) -> None:
        guard.prctl(guard.SET_SUBREAPER, 1)
        environment = os.environ | self._settings.environment | {"PYTHONUNBUFFERED": "1"}
        paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        for rank in self.ranks:
            first = {
                "t": "start",
                "settings": self._settings.model_dump(mode="json"),
                "rank": rank.rank,
                "ranks": len(self.ranks),
                "rendezvous": self._folder.name,
            }
            await rank.start(first, environment)
            assert rank.guard is not None
            _guards.add(rank.guard.pid)

    def add(self, rank: RankProcess, requests: list[Message]) -> None:
        """Give requests to one rank and wake the others."""
        self._wakes += 1
        for each in self.ranks:
            if each is rank:
                each.send({"t": "add", "wakes": self._wakes, "r": requests})
            else:
                each.send({"t": "wake", "wakes": self._wakes})

    def drain(self) -> None:
        for rank in self.ranks:
            rank.send({"t": "drain"})

    async def stop(self, patience_s: float) -> list[int]:
        """End all ranks, by asking and then by force; give the pids that would not die."""
        if self._stopped:
            return []
        self._stopped = True
        self._wakes += 1
        started = [rank for rank in self.ranks if rank.guard is not None]
        for rank in started:
            rank.send({"t": "close", "wakes": self._wakes})
        # a rank that is still loading does not read what it is asked
        ready = [rank for rank in started if rank.info is not None]
        asked = patience_s > 0 and len(ready) == len(started)
        if asked and not await _all_ended(started, patience_s):
            say(f"ranks did not end in {patience_s:g} s; killing them")
        for rank in started:
            rank.kill()
        await _all_ended(started, 10.0)
        self._folder.cleanup()
        return [pid for rank in started for pid in rank.left]


async def _all_ended(ranks: list[RankProcess], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            for rank in ranks:
                await rank.ended.wait()
    except TimeoutError:
        return False
    return True
