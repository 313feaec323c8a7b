"""Requests in flight: the queue, the least loaded rank, cancelling."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dih20.serve.fleet import Fleet
from dih20.serve.ranks import RankProcess


class QueueFull(Exception):
    """More requests wait than the limit allows."""


class Sink(Protocol):
    """Where a request's tokens go; called while the engine's message is read, so it is quick."""

    def take(self, emission: list[Any]) -> bool:
        """Take [id, tokens, logprobs, top, finish, emitted_ns, message]; True: want no more."""
        ...

    def take_one(self, token: int, emitted_ns: int) -> bool:
        """Take one token that came with nothing else, as most do."""
        ...

    def fail(self, message: str) -> None:
        """Hear that the request ended because the server cannot go on."""
        ...


@dataclass(eq=False)
class Ticket:
    """One request's place. rank None: it waits."""

    id: int
    values: dict[str, Any]
    sink: Sink
    rank: RankProcess | None = None


class RequestTable:
    """Who runs where, who waits."""

    def __init__(self, max_queue: int) -> None:
        self.max_queue = max_queue
        self.fleet: Fleet | None = None
        self.waiting: deque[Ticket] = deque()
        self.running: dict[int, Ticket] = {}
        self._loads: dict[RankProcess, int] = {}
        self._next, self._busy_since, self.stepped = 1, 0.0, 0.0

    def open(self, fleet: Fleet) -> None:
        """Begin to give requests to these ranks."""
        self.fleet = fleet
        self._loads = dict.fromkeys(fleet.ranks, 0)

    def submit(self, values: dict[str, Any], sink: Sink, rank: RankProcess | None = None) -> Ticket:
        """Run a request as soon as a rank has room; raises QueueFull.

        Args:
            values: the fields of EngineRequest but id.
            rank: run it there and at once, as the gate asks; None: where the fewest are.
        """
        if rank is not None:
            return self._run_on(rank, values, sink)
        if len(self.waiting) >= self.max_queue and not self._free_rank():
            raise QueueFull
        ticket = Ticket(self._next, {**values, "id": self._next}, sink)
        self._next += 1
        self.waiting.append(ticket)
        self._dispatch()
        return ticket

    def _run_on(self, rank: RankProcess, values: dict[str, Any], sink: Sink) -> Ticket:
        ticket = Ticket(self._next, {**values, "id": self._next}, sink)
        self._next += 1
        self._place(ticket, rank)
        assert self.fleet is not None
        self.fleet.add(rank, [ticket.values])
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request, wherever it is; nothing happens when it is over."""
        if self.running.get(ticket.id) is ticket:
            assert ticket.rank is not None
            ticket.rank.send({"t": "cancel", "ids": [ticket.id]})
            self._release(ticket)
            self._dispatch()
        elif ticket in self.waiting:
            self.waiting.remove(ticket)

    def stepped_with(
        self, emissions: Sequence[list[Any]], plain: Sequence[int] = (), at_ns: int = 0
    ) -> int:
        """Hand a step's emissions to their sinks; give the number of tokens.

        Args:
            plain: id, token, id, token ...: requests that got one token and nothing else.
        """
        self.stepped = time.monotonic()
        tokens, running = 0, self.running
        pairs = iter(plain)
        for id, token in zip(pairs, pairs, strict=True):
            ticket = running.get(id)
            if ticket is None:
                continue  # cancelled while the step ran
            tokens += 1
            try:
                enough = ticket.sink.take_one(token, at_ns)
            except Exception as fault:  # noqa: BLE001 - one answer's fault must not end the others
                enough = _fail(ticket, fault)
            if enough:
                self.cancel(ticket)
        for emission in emissions:
            ticket = running.get(emission[0])
            if ticket is None:
                continue
            tokens += len(emission[1])
            try:
                enough = ticket.sink.take(emission)
            except Exception as fault:  # noqa: BLE001 - as above
                enough = _fail(ticket, fault)
            if emission[4] is not None:
                self._release(ticket)
            elif enough:
                self.cancel(ticket)
        self._dispatch()
        return tokens

    def fail_all(self, message: str) -> None:
        """End every request with one clear error."""
        tickets = [*self.running.values(), *self.waiting]
        for ticket in self.running.values():
            assert ticket.rank is not None
            ticket.rank.send({"t": "cancel", "ids": [ticket.id]})
        self.running.clear()
        self.waiting.clear()
        self._loads = dict.fromkeys(self._loads, 0)
        for ticket in tickets:
            ticket.sink.fail(message)

    @property
    def pending(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def step_age_s(self) -> float | None:
        """Give the age of the last step while work is pending, else None."""
        if not self.running:
            return None
        return time.monotonic() - max(self.stepped, self._busy_since)

    def _free_rank(self) -> RankProcess | None:
        """Give the rank with the fewest requests, if it has room for one more."""
        if not self._loads:
            return None
        rank = min(self._loads, key=lambda each: self._loads[each])
        assert rank.info is not None
        return rank if self._loads[rank] < rank.info["max_num_seqs"] else None

    def _dispatch(self) -> None:
        batches: dict[RankProcess, list[dict[str, Any]]] = {}
        while self.waiting and (rank := self._free_rank()):
            ticket = self.waiting.popleft()
            self._place(ticket, rank)
            batches.setdefault(rank, []).append(ticket.values)
        for rank, requests in batches.items():
            assert self.fleet is not None
            self.fleet.add(rank, requests)

    def _place(self, ticket: Ticket, rank: RankProcess) -> None:
        if not self.running:
            self._busy_since = time.monotonic()
        ticket.rank = rank
        self.running[ticket.id] = ticket
        self._loads[rank] += 1

    def _release(self, ticket: Ticket) -> None:
        del self.running[ticket.id]
        assert ticket.rank is not None
        self._loads[ticket.rank] -= 1


def _fail(ticket: Ticket, fault: Exception) -> bool:
    ticket.sink.fail(f"the answer could not be shown: {type(fault).__name__}: {fault}")
    return True
