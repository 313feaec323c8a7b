"""Which routes answer to whom: methods, tokens, headers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.serve.exchange import Reply, post, say
from tests.serve.running import Server

OPEN = ["/", "/status.json", "/livez", "/startupz", "/readyz", "/health", "/progressz", "/metrics"]
OPEN += ["/version"]
CLOSED = ["/v1/models", "/v1/models/canary", "/v1/completions", "/v1/chat/completions"]
TOKEN = "a-token-of-this-test"
BODY = json.dumps({"model": "canary", "prompt": "1", "max_tokens": 1}).encode()


def get(server: Server, path: str, *headers: str, method: str = "GET") -> Reply:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    return say(server, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n", method=method)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for a bearer token."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"another\n{TOKEN}\n")
    with Server(folder, tokens_file=str(tokens)) as running:
        yield running


@pytest.mark.parametrize("path", OPEN)
def test_every_open_route_answers_get_and_head_alike(idle: Server, path: str) -> None:
    whole, head = get(idle, path), get(idle, path, method="HEAD")
    assert (whole.status, head.status) == (200, 200)
    assert whole.body
    assert head.body == b""
    assert head.headers["content-type"] == whole.headers["content-type"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/", "/readyz", "/v1/models", "/v1/completions"])
def test_other_methods_are_refused_in_the_shape_of_an_error(
    idle: Server, path: str, method: str
) -> None:
    reply = get(idle, path, method=method)
    assert reply.status in (400, 405), reply
    if reply.status == 405:
        reply.error()
        assert "GET" in reply.headers["allow"] or "POST" in reply.headers["allow"]


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/v1", "/v1/", "/v1/nothing", "/v2/models", "/docs", "/openapi.json", "/redoc"]
    + ["/../etc/passwd", "/%2e%2e/etc/passwd", "//v1/models", "/favicon.ico", "/v1/models/no-such"],
)
def test_what_is_not_there_is_said_in_the_shape_of_an_error(idle: Server, path: str) -> None:
    reply = get(idle, path)
    assert reply.status == 404, reply
    reply.error()


@pytest.mark.parametrize("path", OPEN + CLOSED)
def test_no_other_origin_may_read_an_answer(idle: Server, path: str) -> None:
    reply = get(idle, path, "origin: http://evil.example", "cookie: a=b")
    assert not [name for name in reply.headers if name.startswith("access-control-")]
    assert "set-cookie" not in reply.headers


def test_a_web_page_cannot_post_without_asking_first(idle: Server) -> None:
    """A browser sends text/plain to any address unasked; JSON it must ask for, and is refused."""
    data = post("/v1/completions", BODY).replace(b"application/json", b"text/plain")
    reply = say(idle, data)
    assert reply.status == 415, reply
    reply.error()


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize(
    "header",
    [
        "x: y",
        "authorization: Bearer wrong",
        "authorization: Bearer",
        "authorization: Bearer ",
        f"authorization: Basic {TOKEN}",
        f"authorization: {TOKEN}",
        f"authorization: Bearer {TOKEN}x",
        f"authorization: Bearer {TOKEN[:-1]}",
        f"authorization: Bearer {TOKEN} another",
        "authorization: Bearer tök\xff",
        "authorization: Bearer " + "a" * 5_000,
    ],
    ids=lambda header: header[:40],
)
def test_without_a_right_token_nothing_of_the_api_answers(
    guarded: Server, path: str, header: str
) -> None:
    if path.endswith("completions"):
        reply = say(guarded, post(path, BODY, header).replace(b"\xc3\xb6", b"\xf6"))
    else:
        reply = get(guarded, path, header)
    assert reply.status == 401, reply
    assert reply.error()["type"] == "authentication_error"
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert TOKEN.encode() not in reply.body


def test_no_token_is_asked_for_the_body_is_read(guarded: Server) -> None:
    """A refusal needs no body: the head alone is enough to answer."""
    reply = say(guarded, post("/v1/completions", b"", length=60_000))
    assert reply.status == 401


@pytest.mark.parametrize("token", ["another", TOKEN])
def test_each_right_token_opens_the_api(guarded: Server, token: str) -> None:
    header = f"authorization: Bearer {token}"
    assert get(guarded, "/v1/models", header).status == 200
    assert say(guarded, post("/v1/completions", BODY, header)).status == 200


@pytest.mark.parametrize("path", OPEN)
def test_health_and_the_page_need_no_token_and_show_none(guarded: Server, path: str) -> None:
    reply = get(guarded, path)
    assert reply.status == 200
    assert TOKEN.encode() not in reply.body


def test_no_token_is_in_the_log_or_the_answers(guarded: Server) -> None:
    get(guarded, "/v1/models", f"authorization: Bearer {TOKEN}")
    assert TOKEN not in guarded.log.read_text()


def test_an_answer_names_no_server_program(idle: Server) -> None:
    assert "uvicorn" not in str(get(idle, "/livez").headers)
