"""Processes that are killed, stopped or asked to end: nothing hangs, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import RankLost
from tests.serve.exchange import Reply, post, read_reply, say
from tests.serve.running import Server

ALL_ENDED_S = 30.0
PACED = {"step_ms": 20, "strays": 1, "echo": True, "max_model_len": 50_000}


def begin(server: Server, *, tokens: int, stream: bool = True) -> socket.socket:
    """Send a request; a stream is read up to its first token."""
    body = {"model": "canary", "prompt": "1 2 3 4", "max_tokens": tokens, "stream": stream}
    raw = server.connect(60.0)
    raw.sendall(post("/v1/completions", json.dumps(body).encode()))
    if stream:
        seen = b""
        while b"data: " not in seen:
            seen = raw.recv(1 << 16, socket.MSG_PEEK)  # read_reply reads it all
            assert seen, server.log_tail()
    return raw


def rank_pid(server: Server, rank: int = 0, key: str = "pid") -> int:
    return int(server.json("/startupz")["ranks"][rank][key])


def running(server: Server, wanted: int) -> None:
    server.wait_until(lambda: server.metric("dih20_serve_running") == wanted, f"{wanted} to run")


def events(reply: Reply) -> list[Any]:
    lines = [line for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
    return [line[6:] if line == b"data: [DONE]" else json.loads(line[6:]) for line in lines]


KILLS: dict[str, Callable[[Server], tuple[int, signal.Signals]]] = {
    "an engine": lambda server: (rank_pid(server), signal.SIGKILL),
    "the guard of an engine": lambda server: (rank_pid(server, 0, "guard_pid"), signal.SIGKILL),
    "an engine that stands still": lambda server: (rank_pid(server), signal.SIGSTOP),
}


@pytest.mark.parametrize("name", KILLS)
def test_a_lost_engine_ends_all_with_one_clear_error(name: str, tmp_path: Path) -> None:
    deadlines = {"stall_timeout_s": 5, "failed_linger_s": 0.1}
    with Server(tmp_path, engine_options=PACED, deadlines=deadlines) as server:
        server.note_processes()
        stream, whole = begin(server, tokens=5_000), begin(server, tokens=5_000, stream=False)
        running(server, 2)
        began = time.monotonic()
        os.kill(*KILLS[name](server))
        streamed, answered = read_reply(stream), read_reply(whole)
        code = server.wait_exit(ALL_ENDED_S)
        assert time.monotonic() - began < ALL_ENDED_S
        assert code == RankLost.exit_code, server.log_tail()
        server.prove_nothing_is_left()
        told = events(streamed)
        assert "error" in told[-1], told[-2:]
        assert told[-1]["error"]["type"] == "server_error"
        assert answered.status in (500, 503)
        assert "rank 0" in answered.error()["message"] or "no engine step" in server.log_tail()
        stream.close()
        whole.close()


def test_one_lost_rank_of_two_ends_both(tmp_path: Path) -> None:
    with Server(
        tmp_path, engine_options=PACED, ranks=2, deadlines={"failed_linger_s": 0.1}
    ) as server:
        server.note_processes()
        with begin(server, tokens=5_000) as first, begin(server, tokens=5_000) as second:
            running(server, 2)
            os.kill(rank_pid(server, 1), signal.SIGKILL)
            told = [events(read_reply(raw)) for raw in (first, second)]
        assert server.wait_exit(ALL_ENDED_S) == RankLost.exit_code, server.log_tail()
        server.prove_nothing_is_left()
        assert all("rank 1" in each[-1]["error"]["message"] for each in told)
        assert server.log_tail().count("rank 1 ended by signal 9") == 1


def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with Server(tmp_path, engine_options=PACED, ranks=2) as server:
        server.note_processes()
        with begin(server, tokens=5_000) as raw:
            running(server, 1)
            server.process.kill()
            assert server.wait_exit() == -signal.SIGKILL
            server.prove_nothing_is_left()
            reply = read_reply(raw)
            assert b"[DONE]" not in reply.body


def test_a_supervisor_killed_while_the_engine_loads_leaves_no_process(tmp_path: Path) -> None:
    options = {"start": ["a part", 0.2] * 500, "strays": 1}
    with Server(tmp_path, ready=False, engine_options=options) as server:
        server.wait_until(lambda: server.json("/startupz")["phase"] == "loading", "loading")
        server.note_processes()
        server.process.kill()
        server.wait_exit()
        server.prove_nothing_is_left()


def test_a_request_to_end_under_load_lets_running_requests_finish(tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    options = PACED | {"finish_when": str(finish)}
    with Server(tmp_path, engine_options=options) as server:
        server.note_processes()
        streams = [begin(server, tokens=60) for _ in range(16)]
        whole = begin(server, tokens=60, stream=False)
        late = server.connect()
        running(server, 17)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: b"draining" in server.get("/startupz")[1].encode(), "draining")
        assert server.get("/readyz")[0] == 503
        late.sendall(post("/v1/completions", b'{"model":"canary","prompt":"1"}'))
        refused = read_reply(late)
        assert refused.status == 503
        refused.error()
        finish.touch()
        for raw in streams:
            told = events(read_reply(raw))
            assert told[-1] == b"[DONE]", told[-2:]
            text = "".join(part["choices"][0]["text"] for part in told[:-1] if part["choices"])
            assert text.startswith("1 2 3 4")
            raw.close()
        assert json.loads(read_reply(whole).body)["usage"]["completion_tokens"] == 60
        whole.close()
        late.close()
        assert server.wait_exit() == 0, server.log_tail()
        server.prove_nothing_is_left()


def test_requests_longer_than_the_drain_get_a_clear_error(tmp_path: Path) -> None:
    with Server(tmp_path, engine_options=PACED, deadlines={"drain_timeout_s": 0.5}) as server:
        with begin(server, tokens=30_000) as stream:
            with begin(server, tokens=30_000, stream=False) as whole:
                running(server, 2)
                server.process.send_signal(signal.SIGINT)
                told = events(read_reply(stream))
                assert "shutting down" in told[-1]["error"]["message"]
                answered = read_reply(whole)
        assert answered.status == 503
        assert "shutting down" in answered.error()["message"]
        assert server.wait_exit() == 0, server.log_tail()


def test_an_engine_that_dies_during_the_drain_ends_it_at_once(tmp_path: Path) -> None:
    with Server(tmp_path, engine_options=PACED) as server:
        with begin(server, tokens=30_000) as stream:
            running(server, 1)
            pid = rank_pid(server)
            server.process.terminate()
            server.wait_until(lambda: "draining" in server.get("/startupz")[1], "draining")
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            told = events(read_reply(stream))
            assert "error" in told[-1]
            server.wait_exit()
            assert time.monotonic() - began < 15, "the drain waits 30 s for requests that run"


def test_two_servers_of_one_port_cannot_be(idle: Server, tmp_path: Path) -> None:
    second = Server(tmp_path, ready=False, port=idle.port)
    with pytest.raises(AssertionError, match=r"ended with [1-9]"), second:
        pass
    assert "Traceback" not in second.log_tail()
    assert str(idle.port) in second.log_tail()
    assert say(idle, post("/v1/completions", b'{"model":"canary","prompt":"1"}')).status == 200
