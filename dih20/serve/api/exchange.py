"""Requests read within limits, answers sent whole, and clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from starlette.types import Receive, Scope, Send

from dih20.serve.api.errors import ApiError


class Disconnected(Exception):
    """The client went away."""


STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"transfer-encoding", b"chunked"),
]


async def unless_gone(awaited: asyncio.Future[None], receive: Receive) -> None:
    """Wait for the engine; raise Disconnected when the client goes first."""
    if awaited.done():
        return
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((awaited, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
    if not awaited.done():
        raise Disconnected


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(
    send: Send, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def send_error(send: Send, fault: ApiError) -> Awaitable[None]:
    return send_json(send, fault.status, fault.body(), fault.headers)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the body, no further than the limit."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        # a page in a browser can send any other kind to this machine without being asked first
        raise ApiError(415, "the body must be sent as content-type: application/json")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(body)
