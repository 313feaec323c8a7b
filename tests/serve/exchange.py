"""Raw HTTP for tests that say what no client library would."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.serve.running import Server


@dataclass(frozen=True)
class Reply:
    """status 0: the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """Give the error object, checked to have the shape that clients read."""
        found = json.loads(self.body)
        assert set(found) == {"error"}, found
        error: dict[str, Any] = found["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"]
        assert isinstance(error["type"], str)
        return error


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Give a POST; length: what the head claims instead of the truth."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"content-length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def say(server: Server, data: bytes, timeout_s: float = 30.0, method: str = "POST") -> Reply:
    """Send bytes and read one answer; the peer closing early is an answer too."""
    with server.connect(timeout_s) as raw:
        # it may have heard enough before the end; what it answered is still there then
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(data)
        return read_reply(raw, method)


def read_reply(raw: socket.socket, method: str = "POST") -> Reply:
    """Read one answer with a length, in chunks, or up to the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = _receive(raw)
        if not more:
            return Reply(0, {}, data)
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    status = int(first.split(" ")[1])
    if method == "HEAD" or status in (204, 304):
        return Reply(status, headers, body)
    if headers.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n") and (more := _receive(raw)):
            body += more
    else:
        wanted = int(headers["content-length"]) if "content-length" in headers else None
        while (wanted is None or len(body) < wanted) and (more := _receive(raw)):
            body += more
    return Reply(status, headers, body)


def _receive(raw: socket.socket) -> bytes:
    try:
        return raw.recv(1 << 16)
    except ConnectionResetError:
        return b""
