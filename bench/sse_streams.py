"""Streams of an OpenAI-style server over raw HTTP/1.1, cheap enough to hold hundreds on one core.

The official client costs more per token than the server does, so it cannot measure it. This one
keeps a time per token and checks nothing that the caller does not ask about.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

ASK_FOR_STAMPS = "x-dih20-emitted: 1"  # the server then puts `: emitted NANOSECONDS` before a token
STAMP = b": emitted "


@dataclass
class Stream:
    """What came back on one stream; times are monotonic nanoseconds of this machine."""

    sent_ns: int = 0
    status: int = 0
    events: list[bytes] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)  # one per event
    emitted_ns: list[int] = field(default_factory=list)  # where the server said it
    is_done: bool = False
    error: str = ""

    def tokens(self) -> int:
        """Count the events that carry text."""
        return sum(1 for event in self.events if b'"text":""' not in event and b"text" in event)

    def finish_reason(self) -> str | None:
        reasons = [
            choice.get("finish_reason")
            for event in self.events
            for choice in json.loads(event).get("choices", [])
        ]
        return next((reason for reason in reversed(reasons) if reason), None)


class StreamProtocol(asyncio.Protocol):
    """Send one request, take a chunked event stream apart as it comes."""

    def __init__(self, request: bytes, stream: Stream, ended: asyncio.Future[None]) -> None:
        self.request, self.stream, self.ended = request, stream, ended
        self.raw = b""
        self.body = b""
        self.in_body = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.stream.sent_ns = time.monotonic_ns()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self.raw += data
        if not self.in_body and not self._take_head():
            return
        while (chunk := self._next_chunk()) is not None:
            self.body += chunk
            while (end := self.body.find(b"\n\n")) >= 0:
                block, self.body = self.body[:end], self.body[end + 2 :]
                self._take_block(block, now)
            if not chunk:
                self._end("" if self.stream.is_done else "the stream ended before [DONE]")
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc}")

    def _take_head(self) -> bool:
        head, mark, rest = self.raw.partition(b"\r\n\r\n")
        if not mark:
            return False
        self.stream.status = int(head.split(b" ", 2)[1])
        if self.stream.status != 200 or b"transfer-encoding: chunked" not in head.lower():
            self._end(f"answered {head.splitlines()[0].decode()} {rest[:300].decode()}")
            return False
        self.in_body, self.raw = True, rest
        return True

    def _next_chunk(self) -> bytes | None:
        size, mark, rest = self.raw.partition(b"\r\n")
        if not mark:
            return None
        length = int(size, 16)
        if len(rest) < length + 2:
            return None
        self.raw = rest[length + 2 :]
        return rest[:length]

    def _take_block(self, block: bytes, now: int) -> None:
        for line in block.split(b"\n"):
            if line.startswith(STAMP):
                self.stream.emitted_ns.append(int(line[len(STAMP) :]))
            elif line == b"data: [DONE]":
                self.stream.is_done = True
            elif line.startswith(b"data: "):
                self.stream.events.append(line[6:])
                self.stream.received_ns.append(now)

    def _end(self, error: str) -> None:
        if not self.ended.done():
            self.stream.error = error
            self.ended.set_result(None)
            if self.transport is not None:
                self.transport.close()


def request_bytes(
    path: str, body: dict[str, Any], *, stamps: bool = False, token: str = ""
) -> bytes:
    """Give a whole POST request."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"content-length: {len(data)}"] + [ASK_FOR_STAMPS] * stamps
    lines += [f"authorization: Bearer {token}"] * bool(token)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def run_stream(
    port: int, request: bytes, *, timeout_s: float, stream: Stream | None = None
) -> Stream:
    """Run one streamed request to its end; a failure is in .error, never raised.

    stream: where to put what comes, for those who look meanwhile.
    """
    loop = asyncio.get_running_loop()
    stream, ended = stream or Stream(), loop.create_future()
    try:
        transport, _ = await loop.create_connection(
            lambda: StreamProtocol(request, stream, ended), "127.0.0.1", port
        )
    except OSError as error:
        stream.error = f"no connection: {error}"
        return stream
    try:
        await asyncio.wait_for(asyncio.shield(ended), timeout_s)
    except TimeoutError:
        stream.error = f"no end after {timeout_s:g} s"
    finally:
        transport.close()
    return stream


async def get(port: int, path: str) -> str:
    """Give the whole answer to a GET, head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    return data.decode()


def percentiles(values_ms: list[float]) -> dict[str, float]:
    """Give p50, p99 and the largest, in milliseconds."""
    ordered = sorted(values_ms)
    if not ordered:
        return {}
    ranks = {"p50": 0.5, "p99": 0.99}
    found = {name: ordered[int(rank * (len(ordered) - 1))] for name, rank in ranks.items()}
    return {name: round(value, 3) for name, value in (found | {"max": ordered[-1]}).items()}
