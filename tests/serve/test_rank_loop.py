"""One rank's loop: what comes through the socket, turns with the others, what goes back."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dih20.errors import ConfigError
from dih20.serve.engines.interface import (
    Agreed,
    Emission,
    EngineInfo,
    EngineRequest,
    FinishReason,
    Lockstep,
    ReportProgress,
    Solo,
)
from dih20.serve.engines.process import Rank, find_factory
from dih20.serve.engines.wire import (
    Channel,
    Unpacker,
    emissions_to_wire,
    pack,
    request_from_wire,
    request_to_wire,
)

REQUEST = EngineRequest(id=7, prompt=[1, 2], max_tokens=2, logprobs=1)


class Engine:
    """Emits the request's number twice."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep, self.left = lockstep, dict[int, int]()
        self.steps, self.closed = 0, False
        self.after_step: dict[int, Callable[[], None]] = {}

    def start(self, report: ReportProgress) -> EngineInfo:
        report("loading", "half", 0.5)
        return EngineInfo(
            name="fake", version="1", vocab_size=9, max_model_len=9, max_num_seqs=9,
            end_token_ids=[1],
        )  # fmt: skip

    def lockstep(self) -> Lockstep:
        return self._lockstep

    def add(self, request: EngineRequest) -> None:
        self.left[request.id] = request.max_tokens

    def cancel(self, id: int) -> None:
        self.left.pop(id, None)

    def has_work(self) -> bool:
        return bool(self.left)

    def step(self) -> list[Emission]:
        self.steps += 1
        self.after_step.pop(self.steps, lambda: None)()
        found = []
        for id in list(self.left):
            self.left[id] -= 1
            last = self.left[id] == 0
            end: FinishReason | None = "length" if last else None
            found.append(
                Emission(id=id, tokens=[id], emitted_ns=5, logprobs=[math.nan], finish=end)
            )
            if last:
                del self.left[id]
        return found

    def memory(self) -> tuple[int, int] | None:
        return (1, 2)

    def drain(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Loop:
    """A rank's loop in a thread, and the gateway's end."""

    def __init__(self, lockstep: Lockstep) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(30)
        self.engine, self._socket, self._unpacker = Engine(lockstep), ours, Unpacker()
        self._ready: list[dict[str, Any]] = []
        rank = Rank(Channel(theirs), self.engine)
        self.thread = threading.Thread(target=self._run, args=(rank,), daemon=True)
        self.thread.start()

    @staticmethod
    def _run(rank: Rank) -> None:
        rank.start()
        rank.run()

    def send(self, **message: Any) -> None:
        self._socket.sendall(pack(message))

    def hear(self, kind: str) -> dict[str, Any]:
        while True:
            while self._ready:
                message = self._ready.pop(0)
                if message["t"] == kind:
                    return message
            self._ready += self._unpacker.feed(self._socket.recv(1 << 16))

    def hang_up(self) -> None:
        self._socket.close()


class Pair:
    """Two ranks that agree through a barrier."""

    def __init__(self) -> None:
        self._barrier, self._said = threading.Barrier(2, timeout=30), [(False, 0), (False, 0)]
        self.rounds = 0

    def side(self, place: int) -> Lockstep:
        pair = self

        class Side:
            def agree(self, work: bool, wakes: int) -> Agreed:
                pair._said[place] = (work, wakes)
                pair._barrier.wait()
                both = list(pair._said)
                pair._barrier.wait()
                pair.rounds += place
                return Agreed(work=both[0][0] or both[1][0], wakes=min(both[0][1], both[1][1]))

        return Side()


def test_a_request_is_stepped_to_its_end() -> None:
    loop = Loop(Solo())
    assert loop.hear("phase")["fraction"] == 0.5
    assert loop.hear("ready")["info"]["name"] == "fake"
    loop.send(t="add", wakes=1, r=[request_to_wire(REQUEST)])
    first, second = loop.hear("step"), loop.hear("step")
    assert first["e"] == [[7, [7], [None], [], None, 5, ""]], "NaN travels as null"
    assert second["e"][0][4] == "length"
    loop.send(t="close", wakes=2)
    loop.thread.join(30)
    assert not loop.thread.is_alive()
    assert loop.engine.steps == 2, "no step without work"


def test_a_gateway_that_hangs_up_ends_the_loop() -> None:
    loop = Loop(Solo())
    loop.hear("ready")
    loop.hang_up()
    loop.thread.join(30)
    assert not loop.thread.is_alive()


def test_an_idle_rank_steps_with_the_one_that_has_work() -> None:
    pair = Pair()
    busy, idle = Loop(pair.side(0)), Loop(pair.side(1))
    for loop in (busy, idle):
        loop.hear("ready")
    busy.send(t="add", wakes=1, r=[request_to_wire(REQUEST)])
    idle.send(t="wake", wakes=1)
    busy.hear("step")
    assert busy.hear("step")["e"][0][4] == "length"
    # a second round, its wake-up late: nobody may be left waiting
    busy.send(t="add", wakes=2, r=[request_to_wire(REQUEST)])
    idle.send(t="wake", wakes=2)
    busy.hear("step")
    busy.hear("step")
    for loop in (busy, idle):
        loop.send(t="close", wakes=3)
    for loop in (busy, idle):
        loop.thread.join(30)
        assert not loop.thread.is_alive()
    assert busy.engine.steps == idle.engine.steps == 4


def test_a_wake_up_read_before_the_other_rank_reads_its_request_is_not_lost() -> None:
    pair = Pair()
    busy, idle = Loop(pair.side(0)), Loop(pair.side(1))
    # the idle rank finds the second wake-up in its socket while both still step for the first request
    idle.engine.after_step[2] = lambda: idle.send(t="wake", wakes=2)
    for loop in (busy, idle):
        loop.hear("ready")
    busy.send(t="add", wakes=1, r=[request_to_wire(REQUEST)])
    idle.send(t="wake", wakes=1)
    busy.hear("step")
    busy.hear("step")
    until = time.monotonic() + 30
    while pair.rounds < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert pair.rounds == 3, "two turns with work, and the one that found none left"
    busy.send(t="add", wakes=2, r=[request_to_wire(REQUEST)])
    busy.hear("step")
    assert busy.hear("step")["e"][0][4] == "length"
    for loop in (busy, idle):
        loop.send(t="close", wakes=3)
    for loop in (busy, idle):
        loop.thread.join(30)
        assert not loop.thread.is_alive()
    assert busy.engine.steps == idle.engine.steps == 4


def test_plain_emissions_travel_in_pairs_and_all_others_whole() -> None:
    def emitted(id: int, at: int = 5, **more: Any) -> Emission:
        return Emission(id=id, tokens=[id + 10], emitted_ns=at, **more)

    sent = emissions_to_wire(
        [
            emitted(1),
            emitted(2, finish="stop"),
            emitted(3),
            emitted(4, at=6),
            emitted(5, logprobs=[0]),
        ]
    )
    assert (sent["p"], sent["at"]) == ([1, 11, 3, 13], 5)
    assert [row[0] for row in sent["e"]] == [2, 4, 5]


def test_messages_cut_anywhere_come_out_whole() -> None:
    messages: list[dict[str, Any]] = [
        {"t": "step", "e": [[1, [2]]]},
        {"t": "hello", "pid": 4},
        {"t": "x" * 5000},
    ]
    data = b"".join(pack(message) for message in messages)
    unpacker, found = Unpacker(), []
    for at in range(0, len(data), 7):
        found += unpacker.feed(data[at : at + 7])
    assert found == messages


def test_a_request_travels_unchanged() -> None:
    assert request_from_wire(request_to_wire(REQUEST)) == REQUEST


def test_an_unknown_engine_is_refused_by_name() -> None:
    for name in ("vllm", "no.such.module:make", "tests.serve.paced_engine:no_such"):
        with pytest.raises(ConfigError, match="engine"):
            find_factory(name)


def test_an_engine_of_ones_own_is_found_by_module_and_name() -> None:
    from tests.serve.paced_engine import make_engine

    assert find_factory("tests.serve.paced_engine:make_engine") is make_engine
