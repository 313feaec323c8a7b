"""Write each token of a streamed answer to its connection as it comes.

One step of 64 requests passes here 64 times before the last client has its token, so the common
case (one token, plain text) does nothing that can be done once: 1.5 microseconds besides the send.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

from dih20.serve.api.answer import Answer, NotANumber, without_end
from dih20.serve.api.errors import error_object
from dih20.serve.api.frames import DONE, Frames, error_event
from dih20.serve.api.sinks import NOT_A_NUMBER, Sink
from dih20.serve.metrics import Metrics

_STAMP = b": emitted %d\n"  # a comment of the event stream: monotonic nanoseconds


class StreamSink(Sink):
    """Hold what comes before open(), then write straight through.

    The response's head goes out with the first token, so that a request which fails before it
    gets a proper status.
    """

    def __init__(
        self,
        answer: Answer,
        frames: Frames,
        transport: asyncio.Transport,
        metrics: Metrics,
        json_table: Sequence[bytes | None],
        *,
        with_log_probs: bool,
        plain: bool,
        include_usage: bool,
        buffer_bytes: int,
        stamped: bool,
    ) -> None:
        super().__init__(answer)
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frames, self._transport, self._overhead = frames, transport, metrics.overhead
        self._with_log_probs, self._usage, self._stamped = with_log_probs, include_usage, stamped
        self._buffer_bytes, self._fd = buffer_bytes, transport.get_extra_info("socket").fileno()
        self._held: list[bytes] = [frames.role()]
        self._plain = plain and not with_log_probs
        self._fast = False  # open, plain, and no character is incomplete
        self._json_table, self._head, self._tail = json_table, frames.head, frames.tail

    def take_one(self, token: int, emitted_ns: int) -> bool:
        """Write a token that came with nothing else; true when no more is wanted."""
        if self._fast:
            text = self._json_table[token]
            if text is not None:
                self.answer.tokens += 1
                head = _STAMP % emitted_ns + self._head if self._stamped else self._head
                size = len(head) + len(text) + len(self._tail)
                self._send(b"%x\r\n%b%b%b\r\n" % (size, head, text, self._tail))
                self._overhead.add(monotonic_ns() - emitted_ns)
                return self._transport.is_closing()
        return self._take([token], [], [], None, emitted_ns, "")

    def take(self, emission: list[Any]) -> bool:
        """Write what may be seen now."""
        return self._take(*emission[1:])

    def _take(
        self, tokens: list[int], values: Any, top: Any, finish: str | None, at_ns: int, message: str
    ) -> bool:
        if finish == "error":
            self.end((400, message))
            return True
        shown = without_end(tokens, finish)
        log_probs = None
        if self._with_log_probs and shown:
            try:
                log_probs = self.answer.log_probs(shown, values[: len(shown)], top[: len(shown)])
            except NotANumber:
                self.end((500, NOT_A_NUMBER))
                return True
        text = self.answer.take(tokens, finish)
        self._fast = self._plain and self._is_open and self.answer.is_whole
        events = self._frames.text(text, log_probs) if text or log_probs else b""
        if self._stamped:
            events = _STAMP % at_ns + events
        over = self.answer.finish
        if over is not None:
            events += self._frames.finish(over)
            if self._usage:
                events += self._frames.usage(self.answer.usage())
            events += DONE
        self._write(events, at_ns)
        if over is not None:
            self.end(None)
        return over is not None or self._transport.is_closing()

    def open(self) -> None:
        """Hear that the response's head has been sent."""
        held, self._held = b"".join(self._held), []
        self._is_open = True
        self._fast = self._plain and self.answer.is_whole
        self._write(held, self.first_ns)

    def end(self, error: tuple[int, str] | None) -> None:
        super().end(error)
        if not self.first.done():
            self.first.set_result(None)

    def error_event(self) -> bytes:
        """Give the last event of a stream that broke."""
        assert self.error is not None
        return error_event(error_object(*self.error))

    _is_open = False

    def _write(self, events: bytes, at_ns: int) -> None:
        if not self.first.done():
            self.first_ns = at_ns
            self.first.set_result(None)
        if not events:
            return
        if not self._is_open:
            self._held.append(events)
            return
        self._send(b"%x\r\n%b\r\n" % (len(events), events))
        self._overhead.add(monotonic_ns() - at_ns)

    def _send(self, chunk: bytes) -> None:
        """Send now; what the socket does not take is kept for it, up to a limit.

        The transport does the same more slowly. While it keeps something, order is its business;
        while it is not closing, the descriptor is ours.
        """
        transport = self._transport
        if transport.is_closing():
            return
        kept = transport.get_write_buffer_size()
        if kept == 0:
            try:
                sent = os.write(self._fd, chunk)
            except BlockingIOError:
                sent = 0
            except OSError:  # the client is gone
                transport.abort()
                return
            if sent < len(chunk):
                transport.write(chunk[sent:])
        elif kept + len(chunk) > self._buffer_bytes:
            transport.abort()  # it takes less than comes
        else:
            transport.write(chunk)
