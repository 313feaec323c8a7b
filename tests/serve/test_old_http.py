"""What a proxy that speaks HTTP/1.0 gets."""

from __future__ import annotations

import json

from tests.serve.exchange import post, say
from tests.serve.running import Server


def asked(server: Server, stream: bool) -> bytes:
    values = {"model": "canary", "prompt": "1 2", "max_tokens": 2, "stream": stream}
    return post("/v1/completions", json.dumps(values).encode()).replace(b"HTTP/1.1", b"HTTP/1.0", 1)


def test_a_whole_answer_comes_with_its_length(idle: Server) -> None:
    reply = say(idle, asked(idle, stream=False))
    assert reply.status == 200
    assert json.loads(reply.body)["usage"]["completion_tokens"] == 2


def test_a_stream_is_refused_with_what_to_set(idle: Server) -> None:
    reply = say(idle, asked(idle, stream=True))
    assert reply.status == 400
    assert "proxy_http_version 1.1" in reply.error()["message"]


def test_a_refusal_by_the_server_is_no_failure_of_the_engine(idle: Server) -> None:
    name = 'dih20_serve_requests_total{outcome="%s"}'
    refused, failed = idle.metric(name % "refused"), idle.metric(name % "failed")
    say(idle, asked(idle, stream=True))
    engine_refuses = {"model": "canary", "prompt": [7, 7, 7], "max_tokens": 2}
    reply = say(idle, post("/v1/completions", json.dumps(engine_refuses).encode()))
    assert (reply.status, reply.error()["code"]) == (400, "engine_error")
    assert idle.metric(name % "refused") == refused + 1
    assert idle.metric(name % "failed") == failed + 1
