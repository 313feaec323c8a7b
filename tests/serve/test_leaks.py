"""After many requests of every kind and fate, the server holds what it held before."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.serve.conftest import in_flight
from tests.serve.exchange import post, read_reply
from tests.serve.running import Server, open_files, resident_bytes, threads

AT_ONCE = 24  # fewer than run at once in the shared server, so that nothing is refused for room
ROUNDS_TO_WARM = 20


@dataclass(frozen=True)
class Kind:
    """One request and how its client behaves. leaves: after that many bytes, without a word."""

    request: bytes
    expected: bytes = b"HTTP/1.1 200"
    leaves: int | None = None


def completions(**change: Any) -> bytes:
    body = {"model": "canary", "prompt": "1 2 3 4", "max_tokens": 2} | change
    return post("/v1/completions", json.dumps(body).encode(), "connection: close")


def chat(**change: Any) -> bytes:
    body = {"model": "canary", "messages": [{"role": "user", "content": "1"}], "max_tokens": 2}
    return post("/v1/chat/completions", json.dumps(body | change).encode(), "connection: close")


KINDS = [
    Kind(completions()),
    Kind(completions(stream=True)),
    Kind(completions(stream=True, stop=["zz"], logprobs=3)),
    Kind(completions(logprobs=3)),
    Kind(chat()),
    Kind(chat(stream=True, logprobs=True, top_logprobs=2)),
    Kind(completions(stream=True, max_tokens=4000), leaves=600),
    Kind(completions(stream=True, max_tokens=4000), leaves=1),
    Kind(completions(max_tokens=4000), leaves=0),
    Kind(completions(n=2), b"HTTP/1.1 400"),
    Kind(completions(model="x" * 5000), b"HTTP/1.1 404"),
    Kind(post("/v1/completions", b"{" * 3000, "connection: close"), b"HTTP/1.1 400"),
    Kind(post("/v1/completions", b"{}", length=100), leaves=0),
    Kind(b"GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"HTTP/1.1 404"),
    Kind(b"\x00\x01\x02garbage\r\n\r\n", b"HTTP/1.1 400"),
    Kind(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    Kind(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
]


async def one(port: int, kind: Kind) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(kind.request)
        if kind.leaves is None:
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(kind.expected), (kind.request[:200], answer[:500])
        elif kind.leaves:
            await asyncio.wait_for(reader.readexactly(kind.leaves), 60)
        else:
            await writer.drain()
    finally:
        writer.transport.abort()


async def many(port: int, count: int) -> None:
    """Run requests of every kind in turn, AT_ONCE at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(port, KINDS[number % len(KINDS)])

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


@dataclass(frozen=True)
class Held:
    files: int
    threads: int
    tasks: int
    memory: int


def held(server: Server, pid: int) -> Held:
    """Give what a process holds once nothing is in flight."""
    server.wait_until(lambda: in_flight(server) == 0, "all requests to be over", 30)
    return Held(
        files=open_files(pid),
        threads=threads(pid),
        tasks=int(server.metric("dih20_serve_tasks")),
        memory=resident_bytes(pid),
    )


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(10_000, marks=pytest.mark.vendor)], ids=lambda n: f"{n} requests"
)
def test_requests_of_every_fate_leave_nothing_behind(idle: Server, count: int) -> None:
    gateway, rank = idle.process.pid, int(idle.json("/startupz")["ranks"][0]["pid"])
    asyncio.run(many(idle.port, ROUNDS_TO_WARM * len(KINDS)))
    before = {pid: settled(idle, pid) for pid in (gateway, rank)}
    asyncio.run(many(idle.port, count))
    for pid, then in before.items():
        now = back_to(idle, pid, then)
        assert now.files <= then.files
        assert now.threads <= then.threads
        assert now.tasks <= then.tasks
        assert now.memory - then.memory < 4 << 20, "a kilobyte a request would be seen"


def settled(server: Server, pid: int) -> Held:
    """Give what a process holds when two looks agree: connections take a moment to close."""
    looks = [held(server, pid)]

    def is_steady() -> bool:
        looks.append(held(server, pid))
        return looks[-1].files == looks[-2].files and looks[-1].tasks == looks[-2].tasks

    server.wait_until(is_steady, "a steady state", 30)
    return looks[-1]


def back_to(server: Server, pid: int, then: Held) -> Held:
    """Give what a process holds once it is no more than before; what leaks stays, however long one waits.

    A connection whose client left without a word goes at the server's own deadline at the latest.
    """
    until = time.monotonic() + 60
    while True:
        now = settled(server, pid)
        is_back = (
            now.files <= then.files and now.threads <= then.threads and now.tasks <= then.tasks
        )
        if is_back or time.monotonic() > until:
            return now
        time.sleep(0.5)


def test_connections_that_stay_open_are_seen(idle: Server) -> None:
    """Without this the test above could look at the wrong process."""
    pid = idle.process.pid
    before = settled(idle, pid)
    held_open = [idle.connect() for _ in range(5)]
    try:
        for raw in held_open:  # one that never asked would be closed within seconds
            raw.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert read_reply(raw).status == 200
        idle.wait_until(lambda: held(idle, pid).files >= before.files + 5, "five more files", 20)
    finally:
        for raw in held_open:
            raw.close()
