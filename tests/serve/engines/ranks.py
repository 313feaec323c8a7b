"""Ranks of an engine in processes of their own, and a small gateway that speaks to them."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dih20.serve.engines import process
from dih20.serve.engines.interface import EngineContext, EngineRequest
from dih20.serve.engines.reference import ReferenceEngine, make_engine
from dih20.serve.engines.wire import Unpacker, pack, request_to_wire

_PRELOADED = ["torch", "torch.distributed", "tests.serve.engines.ranks"]
_PATIENCE_S = 120.0


def forks() -> Any:
    """Give a context whose processes have imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def run_rank(end: socket.socket) -> None:
    """Be one rank: the program that the supervisor starts, without starting Python again."""
    os._exit(process.main([str(end.detach())]))


class LockedOutside(ReferenceEngine):
    """A rank that believes it is alone: what a missing lockstep looks like."""

    def step(self) -> list[Any]:
        time.sleep(3600)
        return []


def rank_one_never_steps(context: EngineContext) -> ReferenceEngine:
    engine = make_engine(context)
    if context.rank != 1:
        return engine
    return LockedOutside(context, engine._options)


def rank_one_dies_while_loading(context: EngineContext) -> ReferenceEngine:
    engine = make_engine(context)
    if context.rank == 1:
        engine.start = lambda report: _load_and_die(engine, context)  # type: ignore[method-assign]
    return engine


def _load_and_die(engine: ReferenceEngine, context: EngineContext) -> Any:
    from dih20.serve.engines.lockstep import GlooLockstep

    GlooLockstep(context.rendezvous, rank=1, ranks=context.ranks)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Heard:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None


class Ranks:
    """Started ranks; ends them all on the way out."""

    def __init__(self, count: int, *, engine: str = "reference", **options: Any) -> None:
        self.count, self.heard, self.fatal = count, dict[int, Heard](), dict[int, str]()
        self._settings = {"engine": engine, "engine_options": options, "ranks": count}
        self.info: dict[int, dict[str, Any]] = {}
        self._wakes = 0

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self.sockets: list[socket.socket] = []
        self.processes = []
        for rank in range(self.count):
            ours, theirs = socket.socketpair()
            child = forks().Process(target=run_rank, args=(theirs,), daemon=True)
            child.start()
            theirs.close()
            self.processes.append(child)
            self.sockets.append(ours)
            start = {"rank": rank, "ranks": self.count, "rendezvous": self._folder.name}
            ours.sendall(pack({"t": "start", "settings": self._settings, **start}))
        self._unpackers = [Unpacker() for _ in self.sockets]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self.processes:
            child.kill()
            child.join()
        for each in self.sockets:
            each.close()
        self._folder.cleanup()

    def pid(self, rank: int) -> int:
        found: int = self.processes[rank].pid
        return found

    def wait_ready(self) -> None:
        self._listen(lambda: len(self.info) == self.count)
        assert not self.fatal, self.fatal

    def ask(self, rank: int, request: EngineRequest) -> None:
        """Give one rank a request and wake all of them, as the gateway does."""
        self._wakes += 1
        self.heard[request.id] = Heard()
        for number, each in enumerate(self.sockets):
            message: dict[str, Any] = {"t": "wake", "wakes": self._wakes}
            if number == rank:
                message |= {"t": "add", "r": [request_to_wire(request)]}
            each.sendall(pack(message))

    def wait_answers(self) -> None:
        self._listen(lambda: all(heard.finish for heard in self.heard.values()))
        assert all(heard.finish for heard in self.heard.values()), self.fatal

    def wait_tokens(self, count: int) -> None:
        """Wait until so many tokens have come in all."""
        self._listen(lambda: sum(len(heard.tokens) for heard in self.heard.values()) >= count)

    def close(self) -> None:
        """Tell all ranks that it is over."""
        self._wakes += 1
        for each in self.sockets:
            each.sendall(pack({"t": "close", "wakes": self._wakes}))

    def wait_ended(self, ranks: list[int], *, told: bool = True) -> float:
        """Wait until the processes of these ranks have ended; give how many seconds that took.

        told: read as well what each said was the reason.
        """
        began = time.monotonic()
        for rank in ranks:
            self.processes[rank].join(_PATIENCE_S)
            assert not self.processes[rank].is_alive(), f"rank {rank} is still there"
        took = time.monotonic() - began
        if told:
            self._listen(lambda: all(rank in self.fatal for rank in ranks), patience_s=2.0)
        return took

    def _listen(self, done: Any, patience_s: float = _PATIENCE_S) -> None:
        until = time.monotonic() + patience_s
        open_sockets = list(self.sockets)
        while open_sockets and not done():
            left = until - time.monotonic()
            if left <= 0:
                return
            for each in select.select(open_sockets, [], [], min(left, 1.0))[0]:
                if not self._hear(each):
                    open_sockets.remove(each)

    def _hear(self, each: socket.socket) -> bool:
        rank = self.sockets.index(each)
        try:
            data = each.recv(1 << 20)
        except ConnectionResetError:
            return False
        for message in self._unpackers[rank].feed(data):
            if message["t"] == "ready":
                self.info[rank] = message["info"]
            elif message["t"] == "fatal":
                self.fatal[rank] = message["message"]
            elif message["t"] == "step":
                self._emissions(message["e"])
        return bool(data)

    def _emissions(self, emissions: list[list[Any]]) -> None:
        for id, tokens, logprobs, _, finish, _, _ in emissions:
            heard = self.heard[id]
            heard.tokens += tokens
            heard.logprobs += logprobs
            heard.finish = finish


def processor_seconds(pid: int) -> float:
    """Give the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
