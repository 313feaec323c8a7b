"""Run one command over an SSH channel without deadlock: both streams are drained as they come.

A server stops sending when either stream's window is full, so reading one of them first, or
waiting for the exit code first, hangs on any command that says much on the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import paramiko

Sink = Callable[[bytes], None]
_CHUNK_BYTES = 1 << 16


class OutputTooLong(Exception):
    """A command said more than its caller can keep; `limit_bytes` is what it may keep."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"more than {limit_bytes} bytes on one stream")
        self.limit_bytes = limit_bytes


class Kept:
    """A sink that keeps what a command says, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def __call__(self, piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes > self._limit_bytes:
            raise OutputTooLong(self._limit_bytes)
        self._pieces.append(piece)

    @property
    def data(self) -> bytes:
        return b"".join(self._pieces)


def converse(
    channel: paramiko.Channel, *, stdin: bytes, stdout: Sink, stderr: Sink, timeout_s: float
) -> int | None:
    """Feed stdin, drain both streams into their sinks, and give the exit code.

    Gives None when the channel closed without one: the connection broke, or a signal ended the
    command. Raises TimeoutError at the deadline, and what a sink raised; the channel is then closed.
    """
    deadline = time.monotonic() + timeout_s
    channel.settimeout(None)
    faults: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:  # noqa: BLE001 - raised again by the thread that waits
            faults.append(fault)
            channel.close()  # ends the other threads' waits

    workers = [
        threading.Thread(target=guarded, args=(work,), daemon=True)
        for work in (
            lambda: _feed(channel, stdin),
            lambda: _drain(channel.recv, stdout),
            lambda: _drain(channel.recv_stderr, stderr),
        )
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        if faults:
            raise faults[0]
        if any(worker.is_alive() for worker in workers):
            raise TimeoutError
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
    finally:
        channel.close()
    return channel.exit_status if channel.exit_status >= 0 else None


def _feed(channel: paramiko.Channel, stdin: bytes) -> None:
    try:
        if stdin:
            channel.sendall(stdin)
        channel.shutdown_write()
    except OSError:
        pass  # the command ended without reading all of it, which its exit code tells


def _drain(receive: Callable[[int], bytes], sink: Sink) -> None:
    while piece := receive(_CHUNK_BYTES):
        sink(piece)
