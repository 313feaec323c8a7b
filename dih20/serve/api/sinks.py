"""Where tokens of one request go: straight to the socket, or into one response."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from dih20.serve.api.answer import Answer, NotANumber
from dih20.serve.api.errors import error_object
from dih20.serve.api.frames import DONE, Frames, error_event
from dih20.serve.metrics import Metrics

_NOT_A_NUMBER = "the engine gave a log-prob that is not a number: its answer is worthless"


class WholeSink:
    """Keep the answer until it is over."""

    def __init__(self, answer: Answer, with_log_probs: bool) -> None:
        self.answer, self._with_log_probs = answer, with_log_probs
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: tuple[int, str] | None = None
        self.text, self.log_probs = "", None
        self.log_probs: dict[str, Any] | None
        self.first_ns = 0

    def take(self, emission: list[Any]) -> bool:
        _, tokens, values, top, finish, emitted_ns, message = emission
        self.first_ns = self.first_ns or emitted_ns
        if finish == "error":
            self._end((400, message))
            return True
        if self._with_log_probs:
            try:
                self._keep(_without_end(tokens, finish), values, top)
            except NotANumber:
                self._end((500, _NOT_A_NUMBER))
                return True
        self.text += self.answer.take(tokens, finish)
        if self.answer.finish is not None:
            self._end(None)
            return True
        return False

    def fail(self, message: str) -> None:
        self._end((503, message))

    def _keep(self, tokens: list[int], values: list[float | None], top: list[Any]) -> None:
        shape = self.answer.log_probs(tokens, values[: len(tokens)], top[: len(tokens)])
        if self.log_probs is None:
            self.log_probs = shape
            return
        for key, rows in shape.items():
            if isinstance(rows, list):
                self.log_probs[key] += rows

    def _end(self, error: tuple[int, str] | None) -> None:
        if not self.over.done():
            self.error = error
            self.over.set_result(None)


class StreamSink:
    """Write each token to the connection as it comes.

    What comes before open() is held: the response's head goes out with the first token, so that
    a request which fails before it gets a proper status.
    """

    def __init__(
        self,
        answer: Answer,
        frames: Frames,
        transport: asyncio.Transport,
        metrics: Metrics,
        *,
        with_log_probs: bool,
        plain: bool,
        include_usage: bool,
        buffer_bytes: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.answer, self._frames, self._transport, self._metrics = (
            answer,
            frames,
            transport,
            metrics,
        )
        self._with_log_probs, self._usage = with_log_probs, include_usage
        self._buffer_bytes = buffer_bytes
        self.first: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.error: tuple[int, str] | None = None
        self.first_ns, self._held = 0, [frames.role()]
        self._held: list[bytes] | None
        self._plain = plain and not with_log_probs
        self._decode, self._table = answer._decoder._utf8.decode, answer._table
        self._head, self._tail = frames.head, frames.tail

    def take(self, emission: list[Any]) -> bool:
        """Write what may be seen now; the common case is one token and nothing else to do."""
        _, tokens, values, top, finish, emitted_ns, message = emission
        if self._plain and finish is None and self._held is None and len(tokens) == 1:
            self.answer.tokens += 1
            text = self._decode(self._table[tokens[0]])
            if not text:
                return False
            body = self._head + orjson.dumps(text) + self._tail
            transport = self._transport
            transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            self._metrics.overhead.add(time.monotonic_ns() - emitted_ns)
            return transport.get_write_buffer_size() > self._buffer_bytes and self._too_slow()
        return self._take(tokens, values, top, finish, emitted_ns, message)

    def _take(
        self, tokens: list[int], values: Any, top: Any, finish: str | None, at_ns: int, message: str
    ) -> bool:
        if finish == "error":
            self._end((400, message))
            return True
        shown = _without_end(tokens, finish)
        log_probs = None
        if self._with_log_probs and shown:
            try:
                log_probs = self.answer.log_probs(shown, values[: len(shown)], top[: len(shown)])
            except NotANumber:
                self._end((500, _NOT_A_NUMBER))
                return True
        text = self.answer.take(tokens, finish)
        events = self._frames.text(text, log_probs) if text or log_probs else b""
        over = self.answer.finish
        if over is not None:
            events += self._frames.finish(over)
            if self._usage:
                events += self._frames.usage(self.answer.usage())
            events += DONE
        self._write(events, at_ns)
        if over is not None:
            self._end(None)
            return True
        return self._transport.get_write_buffer_size() > self._buffer_bytes and self._too_slow()

    def open(self) -> None:
        """Hear that the response's head has been sent."""
        held, self._held = b"".join(self._held or []), None
        self._write(held, self.first_ns)

    def fail(self, message: str) -> None:
        self._end((503, message))

    def error_event(self) -> bytes:
        """Give the last event of a stream that broke."""
        assert self.error is not None
        return error_event(error_object(*self.error))

    def _write(self, events: bytes, at_ns: int) -> None:
        if not self.first.done():
            self.first_ns = at_ns
            self.first.set_result(None)
        if not events:
            return
        if self._held is not None:
            self._held.append(events)
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))
        if at_ns:
            self._metrics.overhead.add(time.monotonic_ns() - at_ns)

    def _end(self, error: tuple[int, str] | None) -> None:
        if not self.over.done():
            self.error = error
            self.over.set_result(None)
        if not self.first.done():
            self.first.set_result(None)

    def _too_slow(self) -> bool:
        """The client takes less than comes: give the connection up."""
        self._transport.abort()
        return True


def _without_end(tokens: list[int], finish: str | None) -> list[int]:
    return tokens[:-1] if finish == "stop" else tokens
