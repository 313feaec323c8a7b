"""What no honest client sends: each is refused in the shape of an error, and nothing suffers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.serve.exchange import Reply, post, say
from tests.serve.running import Server, resident_bytes

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HEALTHY = {"model": "canary", "prompt": "北京", "max_tokens": 2}
BODY_LIMIT = 1 << 16  # as in conftest


def nested(depth: int) -> bytes:
    return b'{"model":"canary","prompt":' + b"[" * depth + b"]" * depth + b"}"


BODIES: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 400),
    "not JSON": (b"model=canary&prompt=hi", 400),
    "cut off": (b'{"model": "canary", "prompt": "h', 400),
    "two objects": (b"{}{}", 400),
    "an array": (b"[1, 2]", 400),
    "a string": (b'"canary"', 400),
    "null": (b"null", 400),
    "NaN": (b'{"model":"canary","prompt":"a","temperature":NaN}', 400),
    "infinity": (b'{"model":"canary","prompt":"a","temperature":1e999}', 400),
    "bad UTF-8": (b'{"model":"canary","prompt":"\xff\xfe"}', 400),
    "overlong UTF-8": (b'{"model":"canary","prompt":"\xc0\xaf"}', 400),
    "half a surrogate pair": (rb'{"model":"canary","prompt":"\ud800"}', 400),
    "UTF-16": ('{"model":"canary","prompt":"a"}'.encode("utf-16"), 400),
    "nested 500 deep": (nested(500), 400),
    "nested 20,000 deep": (nested(20_000), 400),
    "too large by one byte": (b" " * (BODY_LIMIT + 1), 413),
    "too large by far": (b'{"model":"canary","prompt":"' + b"a" * (8 << 20) + b'"}', 413),
    "a token flood": (json.dumps(HEALTHY | {"prompt": "1 " * 20_000}).encode(), 400),
    "a flood of ids": (json.dumps(HEALTHY | {"prompt": [5] * 10_000}).encode(), 400),
}

FIELDS: list[dict[str, Any]] = [
    {"model": None},
    {"model": 5},
    {"model": ["canary"]},
    {"model": "no-such-model"},
    {"model": "x" * 10_000},
    {"prompt": None},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": 5},
    {"prompt": {"a": 1}},
    {"prompt": [-1]},
    {"prompt": [1 << 40]},
    {"prompt": [1 << 70]},
    {"prompt": [1024]},
    {"prompt": [5, 5.5]},
    {"prompt": [True]},
    {"prompt": [None]},
    {"prompt": ["a", 5]},
    {"prompt": ["a", "b"]},
    {"prompt": [[5], [6]]},
    {"max_tokens": -1},
    {"max_tokens": 0},
    {"max_tokens": 1.5},
    {"max_tokens": "5"},
    {"max_tokens": True},
    {"max_tokens": 1 << 31},
    {"max_tokens": 10**30},
    {"max_tokens": 100_000_000},
    {"temperature": -0.1},
    {"temperature": 3},
    {"temperature": "hot"},
    {"temperature": [1]},
    {"top_p": 0},
    {"top_p": 1.1},
    {"seed": 1.5},
    {"seed": 10**30},
    {"seed": "x"},
    {"stop": ""},
    {"stop": 5},
    {"stop": [5]},
    {"stop": ["a"] * 5},
    {"stop": "a" * 10_000},
    {"logprobs": 20, "max_tokens": 8_000},
    {"logprobs": -1},
    {"logprobs": 1000},
    {"logprobs": "all"},
    {"stream": "yes"},
    {"stream": 1},
    {"stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": 5}},
    {"stream": True, "stream_options": {"no_such": 5}},
    {"n": 0},
    {"n": 1 << 40},
    {"best_of": 5},
    {"echo": True},
    {"tools": [{"type": "function"}]},
    {"presence_penalty": 1},
    {"no_such_parameter": 1},
    {"": 1},
    {"\u0000": 1},
    {"__class__": 1},
    {"messages": [{"role": "user", "content": "a"}]},
]

MESSAGES: list[Any] = [
    None,
    [],
    {},
    "hello",
    [5],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"role": "emperor", "content": "a"}],
    [{"role": ["user"], "content": "a"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
    [{"role": "user", "content": [{"type": "text", "text": 5}]}],
    [{"role": "user", "content": [5]}],
    [{"role": "user", "content": "a", "tool_calls": [{"id": 1}]}],
]

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SMALL = json.dumps(HEALTHY).encode()
WIRES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 600, (400, 0)),
    "no version": (b"GET /\r\n\r\n", (200, 400, 0)),  # HTTP/0.9 as it was
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 0)),
    "a method of 1 MB": (b"A" * (1 << 20), (400, 431, 0)),
    "an address of 1 MB": (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n", (400, 414, 431, 0)),
    "100,000 headers": (HEAD + b"x: y\r\n" * 100_000 + b"\r\n", (400, 431, 0)),
    "a header of 8 MB": (HEAD + b"x: " + b"y" * (8 << 20) + b"\r\n\r\n", (400, 431, 0)),
    "a negative length": (HEAD + b"content-length: -5\r\n\r\n", (400, 0)),
    "a length that is a word": (HEAD + b"content-length: many\r\n\r\n", (400, 0)),
    "a length beyond 64 bits": (
        HEAD + b"content-length: 1" + b"0" * 40 + b"\r\n\r\n",
        (400, 413, 0),
    ),
    "a length beyond the limit": (HEAD + b"content-length: 99999999999\r\n\r\n", (413,)),
    "an upgrade": (
        HEAD
        + b"connection: upgrade\r\nupgrade: websocket\r\ncontent-length: %d\r\n\r\n" % len(SMALL)
        + SMALL,
        (200, 400, 408, 426, 0),
    ),
    "two lengths": (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n123456", (400, 0)),
    "length and chunks": (
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        (400, 0),
    ),
    "a chunk size that is none": (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", (400, 0)),
    "chunks beyond the limit": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + (b"8000\r\n" + b" " * 0x8000 + b"\r\n") * 40,
        (413,),
    ),
    "NUL in a header": (HEAD + b"x: a\x00b\r\ncontent-length: 2\r\n\r\n{}", (400, 0)),
    "a body that never comes": (HEAD + b"content-length: 50\r\n\r\n{", (408, 0)),
    "a head that never ends": (HEAD, (408, 0)),
    "one byte": (b"P", (408, 0)),
    "nothing": (b"", (408, 0)),
}


def ask(server: Server, values: dict[str, Any], path: str = COMPLETIONS) -> Reply:
    return say(server, post(path, json.dumps(values).encode()))


def still_healthy(server: Server) -> None:
    reply = ask(server, HEALTHY)
    assert reply.status == 200, reply
    assert json.loads(reply.body)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_is_refused(idle: Server, name: str, path: str) -> None:
    body, status = BODIES[name]
    if path == CHAT and "flood" in name:
        messages = [{"role": "user", "content": "1 " * 20_000}]
        body = json.dumps({"model": "canary", "messages": messages}).encode()
    reply = say(idle, post(path, body))
    assert reply.status == status, reply
    reply.error()
    still_healthy(idle)


@pytest.mark.parametrize("change", FIELDS, ids=lambda change: json.dumps(change)[:40])
def test_a_field_that_makes_no_sense_is_refused_by_name(
    idle: Server, change: dict[str, Any]
) -> None:
    reply = ask(idle, HEALTHY | change)
    unknown = change.get("model") in ("no-such-model", "x" * 10_000)
    assert reply.status == (404 if unknown else 400), reply
    error = reply.error()
    assert error["param"] is not None, error
    named = str(error["param"]).split(".")[0].split("[")[0]
    too_long = "prompt" if error["code"] == "context_length_exceeded" else None
    assert named in {*change, too_long}, error
    assert len(reply.body) < 4_000


@pytest.mark.parametrize("messages", MESSAGES, ids=lambda value: json.dumps(value)[:40])
def test_messages_that_make_no_sense_are_refused(idle: Server, messages: Any) -> None:
    reply = ask(idle, {"model": "canary", "messages": messages, "max_tokens": 2}, CHAT)
    assert reply.status == 400, reply
    assert str(reply.error()["param"]).startswith("messages")


@pytest.mark.parametrize("name", WIRES)
def test_hostile_bytes_are_refused_or_cut_off(idle: Server, name: str) -> None:
    data, statuses = WIRES[name]
    started = time.monotonic()
    reply = say(idle, data)
    assert reply.status in statuses, reply
    assert time.monotonic() - started < 15, "the read deadline of this server is 1.5 s"
    still_healthy(idle)


def test_floods_of_bytes_do_not_stay_in_memory(idle: Server) -> None:
    flood = HEAD + b"x: " + b"y" * (24 << 20)
    say(idle, flood)
    before = resident_bytes(idle.process.pid)
    for _ in range(4):
        say(idle, flood)
        say(idle, post(COMPLETIONS, b"a" * (24 << 20)))
    assert resident_bytes(idle.process.pid) - before < 24 << 20


def test_connections_that_say_nothing_do_not_keep_others_out(idle: Server) -> None:
    silent = [idle.connect() for _ in range(100)]
    try:
        still_healthy(idle)
    finally:
        for raw in silent:
            raw.close()
