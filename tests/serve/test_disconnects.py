"""Clients that go away, or take nothing: their requests end, and others notice nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import ConfigError
from tests.serve.conftest import in_flight
from tests.serve.exchange import post, read_reply, say
from tests.serve.running import Server, open_files

CANCELLED = 'dih20_serve_requests_total{outcome="cancelled"}'
LONG = {"model": "canary", "prompt": "1 2 3 4", "max_tokens": 8_000}
WAIT_S = 30.0


def request(**change: Any) -> bytes:
    return post("/v1/completions", json.dumps(LONG | change).encode())


def close(raw: socket.socket) -> None:
    raw.close()


def reset(raw: socket.socket) -> None:
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def half_close(raw: socket.socket) -> None:
    raw.shutdown(socket.SHUT_WR)


def until_first_token(raw: socket.socket) -> None:
    seen = b""
    while b"data: " not in seen:
        more = raw.recv(1 << 16)
        assert more, seen
        seen += more


@pytest.mark.parametrize("go", [close, reset, half_close])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_away_cancels_its_request(
    idle: Server, go: Callable[[socket.socket], None], stream: bool
) -> None:
    before = idle.metric(CANCELLED)
    with idle.connect() as raw:
        raw.sendall(request(stream=stream))
        if stream:
            until_first_token(raw)
        idle.wait_until(lambda: idle.metric("dih20_serve_running") == 1, "it to run", WAIT_S)
        go(raw)
        idle.wait_until(lambda: idle.metric(CANCELLED) == before + 1, "the cancel", WAIT_S)
    assert in_flight(idle) == 0


def test_a_full_queue_refuses_and_a_waiting_client_that_leaves_makes_room(idle: Server) -> None:
    """32 run, 4 wait (conftest): the next is refused with 429 until one of those goes away.

    None is a stream: nobody reads here, and an unread stream is dropped after some seconds.
    """
    held = []
    try:
        for number in range(36):
            held.append(idle.connect())
            held[-1].sendall(request())
            wanted = number + 1
            idle.wait_until(lambda: in_flight(idle) == wanted, f"{wanted} in flight", WAIT_S)  # noqa: B023
        refused = say(idle, request())
        assert refused.status == 429, refused
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error()["type"] == "rate_limit_error"
        held.pop().close()
        idle.wait_until(lambda: in_flight(idle) == 35, "the waiting one to be gone", WAIT_S)
        with idle.connect() as raw:
            raw.sendall(request())
            idle.wait_until(lambda: in_flight(idle) == 36, "the next to be taken", WAIT_S)
    finally:
        for raw in held:
            raw.close()


def test_a_client_that_takes_nothing_is_dropped_and_blocks_nobody(idle: Server) -> None:
    before = idle.metric(CANCELLED)
    gaps: list[float] = []
    with idle.connect(receive_bytes=4096) as slow:
        slow.sendall(request(stream=True, logprobs=20))
        steady = threading.Thread(target=_take_steadily, args=(idle, gaps))
        steady.start()
        # it reads nothing from here on: at most the kernel's buffers, ours and 1.5 s
        idle.wait_until(lambda: idle.metric(CANCELLED) == before + 1, "the drop", 60)
        steady.join()
        assert len(gaps) >= 400
        assert max(gaps) < 1.0, "a stream beside the slow one stood still"
        slow.settimeout(30)
        seen = b""
        try:
            while more := slow.recv(1 << 20):
                seen = more
        except ConnectionResetError:
            pass
        assert not seen.endswith(b"0\r\n\r\n"), "a dropped stream must not look complete"


def test_a_client_that_takes_slowly_but_steadily_gets_all_of_a_large_answer(idle: Server) -> None:
    """For longer than the write deadline of 1.5 s, with more unsent than the kernel holds."""
    body: dict[str, Any] = {"model": "canary", "messages": [{"role": "user", "content": "1"}]}
    body |= {"max_tokens": 1400, "logprobs": True, "top_logprobs": 20}
    # with a buffer of 4 KiB the server sees it take something once a second; with this, thrice
    with idle.connect(receive_bytes=16384) as slow:
        slow.sendall(post("/v1/chat/completions", json.dumps(body).encode()))
        began, data = 0.0, b""
        while not data.endswith(b"}}"):
            more = slow.recv(24 << 10)
            began = began or time.monotonic()
            assert more, f"cut off after {len(data)} bytes, {time.monotonic() - began:.1f} s"
            data += more
            time.sleep(0.05)
        assert time.monotonic() - began > 2.5


def _take_steadily(server: Server, gaps: list[float]) -> None:
    with server.connect() as raw:
        raw.sendall(request(stream=True, max_tokens=400))
        last = 0.0
        while more := raw.recv(1 << 16):
            now = time.monotonic()
            last = last or now  # until the first token is no gap between two
            gaps.extend([now - last] + [0.0] * (more.count(b"data: ") - 1))
            last = now
            if more.endswith(b"0\r\n\r\n"):
                return


def test_an_upload_that_breaks_off_starts_nothing(idle: Server) -> None:
    whole = request()
    started = idle.metric("dih20_serve_prompt_tokens_total")
    for cut in (1, len(whole) // 2, len(whole) - 1):
        with idle.connect() as raw:
            raw.sendall(whole[:cut])
    assert say(idle, request(max_tokens=2)).status == 200
    assert idle.metric("dih20_serve_prompt_tokens_total") - started < 10


def test_a_kept_connection_serves_one_request_after_another(idle: Server) -> None:
    with idle.connect() as raw:
        for stream in (True, False, True):
            raw.sendall(request(stream=stream, max_tokens=5))
            reply = read_reply(raw)
            assert reply.status == 200
            assert (b"[DONE]" in reply.body) == stream


def test_two_requests_sent_at_once_are_answered_in_order(idle: Server) -> None:
    with idle.connect() as raw:
        raw.sendall(request(stream=True, max_tokens=30) + request(max_tokens=3))
        data = b""
        while b'"completion_tokens":3' not in data:
            more = raw.recv(1 << 16)
            assert more, data
            data += more
    first, _, second = data.partition(b"data: [DONE]")
    assert first.count(b"data: {") >= 30
    assert second.count(b"HTTP/1.1 200") == 1


def test_more_connections_than_the_limit_are_refused_and_not_for_long(tmp_path: Path) -> None:
    """The soft limit of open files would end first: the server makes room for its own limit."""
    limits = {"max_connections": 400}
    with Server(tmp_path, below=few_files("-Sn"), limits=limits) as server:
        with contextlib.ExitStack() as held:
            for _ in range(400):
                held.enter_context(server.connect())
            server.wait_until(lambda: open_files(server.process.pid) >= 400, "all to be taken")
            refused = say(server, request(max_tokens=2))
            assert refused.status == 503, refused
            refused.error()
        assert "Too many open files" not in server.log.read_text()
        server.wait_until(lambda: say(server, request(max_tokens=2)).status == 200, "room again")


def test_a_limit_of_files_that_cannot_hold_the_connections_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path, ready=False, below=few_files("-n"), limits={"max_connections": 400})
    with pytest.raises(AssertionError, match=f"ended with {ConfigError.exit_code} "), server:
        pass
    assert "limits.max_connections = 400" in server.log_tail()


def few_files(which: str) -> list[str]:
    return ["bash", "-c", f'ulimit {which} 300; exec "$@"', "bash"]
