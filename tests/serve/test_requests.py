"""Who runs where, who waits, and what a step brings."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dih20.serve.fleet import Fleet
from dih20.serve.ranks import RankProcess
from dih20.serve.requests import QueueFull, RequestTable


class FakeRank:
    def __init__(self, room: int) -> None:
        self.info = {"max_num_seqs": room}
        self.got: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.got.append(message)


class FakeFleet:
    def __init__(self, *ranks: FakeRank) -> None:
        self.ranks = ranks

    def add(self, rank: FakeRank, requests: list[dict[str, Any]]) -> None:
        rank.send({"t": "add", "r": requests})


class FakeSink:
    def __init__(self, enough_after: int = 99) -> None:
        self.tokens: list[int] = []
        self.failed = ""
        self._enough_after = enough_after

    def take(self, emission: list[Any]) -> bool:
        self.tokens += emission[1]
        if self.tokens[-1] == 666:
            raise ValueError("a token nobody knows")
        return len(self.tokens) >= self._enough_after

    def take_one(self, token: int, emitted_ns: int) -> bool:
        return self.take([0, [token], [], [], None, emitted_ns, ""])

    def fail(self, message: str) -> None:
        self.failed = message


def emission(id: int, token: int, finish: str | None = None) -> list[Any]:
    return [id, [token], [], [], finish, 0, ""]


def opened(*rooms: int, max_queue: int = 2) -> tuple[RequestTable, list[FakeRank]]:
    ranks = [FakeRank(room) for room in rooms]
    table = RequestTable(max_queue)
    table.open(cast(Fleet, FakeFleet(*ranks)))
    return table, ranks


def ids(rank: FakeRank) -> list[int]:
    return [r["id"] for message in rank.got if message["t"] == "add" for r in message["r"]]


def test_requests_go_to_the_least_loaded_rank() -> None:
    table, (first, second) = opened(4, 4)
    for _ in range(4):
        table.submit({}, FakeSink())
    assert (ids(first), ids(second)) == ([1, 3], [2, 4])
    table.stepped_with([emission(1, 5, "stop"), emission(3, 5, "length")])
    table.submit({}, FakeSink())
    assert ids(first) == [1, 3, 5]


def test_what_finds_no_room_waits_in_order_and_then_runs() -> None:
    table, (rank,) = opened(1)
    sinks = [FakeSink() for _ in range(3)]
    for sink in sinks:
        table.submit({}, sink)
    assert (ids(rank), len(table.waiting), table.pending) == ([1], 2, 3)
    table.stepped_with([emission(1, 5, "stop")])
    assert ids(rank) == [1, 2]
    table.stepped_with([emission(2, 6, "stop")])
    assert ids(rank) == [1, 2, 3]


def test_a_full_queue_refuses() -> None:
    table, _ = opened(1, max_queue=1)
    table.submit({}, FakeSink())
    table.submit({}, FakeSink())
    with pytest.raises(QueueFull):
        table.submit({}, FakeSink())


def test_a_queue_of_none_still_runs_what_has_room() -> None:
    table, (rank,) = opened(2, max_queue=0)
    table.submit({}, FakeSink())
    table.submit({}, FakeSink())
    assert ids(rank) == [1, 2]
    with pytest.raises(QueueFull):
        table.submit({}, FakeSink())


def test_cancelling_tells_the_engine_and_makes_room() -> None:
    table, (rank,) = opened(1)
    sink = FakeSink()
    running, waiting = table.submit({}, sink), table.submit({}, FakeSink())
    table.cancel(running)
    assert rank.got[1] == {"t": "cancel", "ids": [1]}
    assert ids(rank) == [1, 2]
    table.stepped_with([emission(1, 5)])
    assert sink.tokens == [], "what a step brings for a cancelled request is dropped"
    table.cancel(running)
    table.cancel(waiting)
    assert table.pending == 0


def test_a_waiting_request_can_be_cancelled() -> None:
    table, (rank,) = opened(1)
    table.submit({}, FakeSink())
    table.cancel(table.submit({}, FakeSink()))
    assert table.pending == 1
    assert [m["t"] for m in rank.got] == ["add"]


def test_a_sink_that_has_enough_ends_its_request_in_the_engine() -> None:
    table, (rank,) = opened(1)
    table.submit({}, FakeSink(enough_after=1))
    table.stepped_with([emission(1, 5)])
    assert rank.got[-1] == {"t": "cancel", "ids": [1]}
    assert table.pending == 0


def test_the_fault_of_one_sink_ends_only_its_request() -> None:
    table, _ = opened(2)
    bad, good = FakeSink(), FakeSink()
    table.submit({}, bad)
    table.submit({}, good)
    assert table.stepped_with([emission(1, 666), emission(2, 5)]) == 2
    assert "a token nobody knows" in bad.failed
    assert good.tokens == [5]
    assert list(table.running) == [2]


def test_plain_tokens_reach_their_requests_and_others_are_dropped() -> None:
    table, (rank,) = opened(3)
    sinks = [FakeSink(), FakeSink(enough_after=1), FakeSink()]
    for sink in sinks:
        table.submit({}, sink)
    assert table.stepped_with([emission(3, 9, "stop")], [1, 7, 2, 8, 44, 5, 3, 6], 1) == 4
    assert [sink.tokens for sink in sinks] == [[7], [8], [6, 9]]
    assert list(table.running) == [1]
    assert rank.got[-1] == {"t": "cancel", "ids": [2]}


def test_a_lost_engine_fails_everything_once() -> None:
    table, _ = opened(1)
    sinks = [FakeSink(), FakeSink()]
    for sink in sinks:
        table.submit({}, sink)
    table.fail_all("rank 0 is gone")
    assert [sink.failed for sink in sinks] == ["rank 0 is gone"] * 2
    assert table.pending == 0


def test_the_gate_reaches_every_rank() -> None:
    table, (first, second) = opened(1, 1)
    for rank in (second, second, first):
        table.submit({}, FakeSink(), cast(RankProcess, rank))
    assert (ids(first), ids(second)) == ([3], [1, 2])


def test_the_age_of_a_step_counts_only_while_work_is_pending() -> None:
    table, _ = opened(1)
    assert table.step_age_s is None
    table.submit({}, FakeSink())
    age = table.step_age_s
    assert age is not None
    assert age < 60
    table.stepped_with([emission(1, 5, "stop")])
    assert table.step_age_s is None
