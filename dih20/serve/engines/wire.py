"""Messages between the gateway and a rank: four bytes of length, then one JSON object.

To a rank     {"t": "start", "settings", "rank", "ranks", "rendezvous"}   the first one
              {"t": "add", "wakes", "r": [request ...]}     request: the fields of EngineRequest
              {"t": "wake", "wakes"}                       another rank has work
              {"t": "cancel", "ids"}   {"t": "drain"}   {"t": "close", "wakes"}
From a rank   {"t": "hello", "pid"}
              {"t": "phase", "phase", "line", "fraction"}
              {"t": "ready", "info"}
              {"t": "step", "n", "ns", "mem", "e": [emission ...], "p": [id, token, ...], "at"}
              {"t": "fatal", "message"}                    then the process ends
emission: [id, tokens, logprobs, top, finish, emitted_ns, message]. Those of one token and nothing
else stand in "p", in pairs, all emitted at "at". A step message holds all of its emissions; steps without any are reported four times a second, so that progress is seen.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
from collections.abc import Sequence
from typing import Any

import orjson

from dih20.serve.engines.interface import Emission, EngineRequest

_LENGTH = struct.Struct(">I")
LONGEST = 256 << 20


def pack(message: dict[str, Any]) -> bytes:
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes | memoryview) -> list[dict[str, Any]]:
        held = self._held
        held += data
        found: list[dict[str, Any]] = []
        at = 0
        while len(held) - at >= 4:
            (length,) = _LENGTH.unpack_from(held, at)
            assert length <= LONGEST, f"a message of {length} bytes"
            if len(held) - at - 4 < length:
                break
            found.append(orjson.loads(memoryview(held)[at + 4 : at + 4 + length]))
            at += 4 + length
        if at:
            del held[:at]
        return found


class Channel:
    """A rank's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._unpacker = sock, Unpacker()
        self.closed = False

    def send(self, message: dict[str, Any]) -> None:
        self._sock.sendall(pack(message))

    def receive(self, *, wait: bool) -> list[dict[str, Any]]:
        """Give what has come; wait for something, or only look."""
        try:
            data = self._sock.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not data:
            self.closed = True
            return []
        return self._unpacker.feed(data)


def request_to_wire(request: EngineRequest) -> dict[str, Any]:
    return {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}


def request_from_wire(values: dict[str, Any]) -> EngineRequest:
    return EngineRequest(**values)


def emissions_to_wire(emissions: Sequence[Emission]) -> dict[str, Any]:
    """Give the keys "e", "p" and "at" of a step message."""
    full: list[list[Any]] = []
    plain: list[int] = []
    at = emissions[0].emitted_ns if emissions else 0
    for e in emissions:
        if len(e.tokens) == 1 and e.finish is None and not e.logprobs and e.emitted_ns == at:
            plain.append(e.id)
            plain.append(e.tokens[0])
        else:
            full.append([e.id, e.tokens, e.logprobs, e.top, e.finish, e.emitted_ns, e.message])
    return {"e": full, "p": plain, "at": at}
