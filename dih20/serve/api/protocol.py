"""uvicorn's HTTP protocol with bounds, and with the connection's transport handed on.

A streamed token is written straight to the transport (api/stream_sink.py): going through ASGI's
send for each costs a task switch and several layers of calls. The parser below uvicorn has no
limit on heads and no deadline; both are here, so that a client that floods or stalls costs a
bounded amount of memory for a bounded time.
"""

from __future__ import annotations

import asyncio
import http
import socket
import time
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dih20.serve.api.errors import error_object
from dih20.serve.settings import Limits

TRANSPORT = "dih20.transport"
_HEAD_BYTES, _ADDRESS_BYTES = 64 << 10, 16 << 10
_KERNEL_BYTES = 256 << 10  # of unsent output; the default hides megabytes from write deadlines
_LINGER_S = 2.0  # a refused client may go on talking for so long, so that it hears the refusal


class StreamingProtocol(HttpToolsProtocol):
    """One connection. awaiting_since: when a request that is not whole yet began."""

    limits: Limits = Limits()
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        self.awaiting_since: float | None = time.monotonic()
        self.blocked_since: float | None = None
        self.unsent = 0  # bytes, when last looked at
        self.heard = time.monotonic()
        self._in_head, self._head_bytes, self._refused = True, 0, False
        if len(self.connections) > self.limits.max_connections:
            self.refuse(503, "too many connections")

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _HEAD_BYTES and not self._refused:
            self.refuse(431, f"the head of a request has at most {_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.awaiting_since = self.awaiting_since or time.monotonic()
        extensions: dict[str, Any] = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._refused:
            return
        size = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.url) > _ADDRESS_BYTES:
            self.refuse(414, f"an address has at most {_ADDRESS_BYTES} bytes")
        elif size > _HEAD_BYTES:
            self.refuse(431, f"the head of a request has at most {_HEAD_BYTES} bytes")
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self.awaiting_since = True, None
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, message: str) -> None:
        """Answer without the application, then hear the client out for a moment and close."""
        self._refused = True
        transport = self.transport
        if transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            transport.abort()  # an answer is under way; no other fits into it
            return
        body = orjson.dumps(error_object(status, message))
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.write_eof()
        self.loop.call_later(_LINGER_S, transport.abort)


def limited(limits: Limits) -> type[StreamingProtocol]:
    """Give the protocol with these limits."""
    return type("LimitedProtocol", (StreamingProtocol,), {"limits": limits})


async def enforce_deadlines(connections: set[Any], limits: Limits, idle_s: float) -> None:
    """Close connections that do not finish a request, do not take their answer, or do nothing."""
    every = min(1.0, limits.write_timeout_s / 4, limits.read_timeout_s / 4)
    while True:
        await asyncio.sleep(every)
        now = time.monotonic()
        for each in list(connections):
            if isinstance(each, StreamingProtocol):
                _enforce(each, limits, now, idle_s)


def _enforce(each: StreamingProtocol, limits: Limits, now: float, idle_s: float) -> None:
    unsent, before = each.transport.get_write_buffer_size(), each.unsent
    each.unsent = unsent
    if unsent == 0:
        each.blocked_since = None
    elif each.blocked_since is None or unsent < before:  # it takes some, however slowly
        each.blocked_since = now
    elif now - each.blocked_since > limits.write_timeout_s:
        each.transport.abort()
        return
    if each.awaiting_since is not None:
        if now - each.awaiting_since > limits.read_timeout_s:
            each.awaiting_since = None
            each.refuse(408, f"the request was not whole after {limits.read_timeout_s:g} s")
    elif (each.cycle is None or each.cycle.response_complete) and now - each.heard > idle_s:
        each.transport.close()
