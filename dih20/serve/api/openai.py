"""/v1/completions and /v1/chat/completions, as plain ASGI: one request from body to last byte."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from dih20.serve.api.answer import Answer
from dih20.serve.api.auth import authorise
from dih20.serve.api.errors import ApiError, invalid
from dih20.serve.api.frames import Frames, whole
from dih20.serve.api.params import Asked, parse
from dih20.serve.api.protocol import TRANSPORT
from dih20.serve.api.sinks import WholeSink
from dih20.serve.api.stream_sink import StreamSink
from dih20.serve.requests import QueueFull, Ticket
from dih20.serve.service import Service
from dih20.serve.text.chat import TemplateRefused
from dih20.serve.text.tokenising import Busy

_ASK_FOR_STAMPS = b"x-dih20-emitted"  # for measuring: each token comes with the time of its step
_LONG_TEXT = 4096  # characters; longer prompts are tokenised beside the event loop


class Disconnected(Exception):
    """The client went away."""


class Route:
    """One of the two routes."""

    def __init__(self, service: Service, kind: str) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._service.metrics
        try:
            await self._serve(scope, receive, send)
            metrics.responses.labels(self._kind, "200").inc()
        except ApiError as fault:
            metrics.refused += 1
            metrics.responses.labels(self._kind, str(fault.status)).inc()
            await send_error(send, fault)
        except Disconnected:
            metrics.cancelled += 1

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        began_ns = time.monotonic_ns()
        authorise(service.tokens, scope["headers"])
        asked = parse(await self._body(scope, receive), self._kind, service.settings.limits)
        if asked.model != service.settings.served_name:
            raise ApiError(
                404,
                f"the model {asked.model[:200]!r} does not exist; served is "
                f"{service.settings.served_name!r}",
                param="model",
                code="model_not_found",
            )
        self._require_ready()
        values = self._engine_values(asked, await self._prompt(asked))
        answer = Answer(asked, service.codec, len(values["prompt"]))
        service.metrics.prompt_tokens += len(values["prompt"])
        respond = self._stream if asked.stream else self._whole
        await respond(asked, answer, values, scope, receive, send)
        service.metrics.request_time.observe((time.monotonic_ns() - began_ns) / 1e9)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body, no further than the limit."""
        limit = self._service.settings.limits.body_bytes
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            # a page in a browser can send any other kind to this machine without being asked first
            raise ApiError(415, "the body must be sent as content-type: application/json")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            body += message.get("body", b"")
            if len(body) > limit:
                raise _too_large(limit)
            if not message.get("more_body"):
                return bytes(body)

    def _require_ready(self) -> None:
        state = self._service.state
        if state.phase != "ready":
            wait = state.eta_s
            raise ApiError(
                503,
                f"the server is {state.phase}" + (f": {state.reason}" if state.reason else ""),
                code="not_ready",
                headers={"retry-after": str(max(1, round(wait)) if wait else 5)},
            )

    async def _prompt(self, asked: Asked) -> list[int]:
        """Give the prompt's ids; long texts are worked on beside the event loop."""
        if isinstance(asked.prompt, list):
            return asked.prompt
        if asked.chat and self._service.codec.chat is None:
            raise invalid("this checkpoint has no chat template", code="no_chat_template")
        size = len(asked.prompt) + sum(len(each["content"]) + 64 for each in asked.messages)
        try:
            if size > _LONG_TEXT:
                return await self._service.tokenising.run(partial(self._encode, asked))
            return self._encode(asked)
        except TemplateRefused as fault:
            raise invalid(f"the chat template refused: {fault}", "messages") from fault
        except Busy:
            raise ApiError(
                429, "enough long prompts wait already", code="queue_full",
                headers={"retry-after": "5"},
            ) from None  # fmt: skip

    def _encode(self, asked: Asked) -> list[int]:
        codec = self._service.codec
        assert isinstance(asked.prompt, str)
        text = asked.prompt
        if asked.chat:
            assert codec.chat is not None
            text = codec.chat.render(asked.messages)
        fewest = codec.fewest_tokens(text)
        if fewest > self._longest():
            raise self._too_long(asked, f"at least {fewest}")
        return codec.encode(text, special=not asked.chat)

    def _longest(self) -> int:
        limit = self._service.settings.limits.max_model_len or 1 << 62
        return min(int(self._service.info["max_model_len"]), limit)

    def _too_long(self, asked: Asked, tokens: str) -> ApiError:
        where = "messages" if asked.chat else "prompt"
        return invalid(
            f"the model takes {self._longest()} tokens; the {where} of {tokens} does not fit",
            where,
            "context_length_exceeded",
        )

    def _engine_values(self, asked: Asked, prompt: list[int]) -> dict[str, Any]:
        """Give the fields of EngineRequest; refuses what does not fit the model."""
        service, limits = self._service, self._service.settings.limits
        where = "messages" if asked.chat else "prompt"
        if not prompt:
            raise invalid(f"{where} has no tokens", where)
        longest = self._longest()
        room = longest - len(prompt)
        if room < 1:
            raise self._too_long(asked, str(len(prompt)))
        if (asked.max_tokens or 1) > room:
            raise invalid(
                f"the model takes {longest} tokens: {len(prompt)} of {where} and "
                f"{asked.max_tokens} of the answer do not fit",
                "max_tokens",
                "context_length_exceeded",
            )
        vocab = min(service.info["vocab_size"], len(service.codec.table))
        if not 0 <= min(prompt) <= max(prompt) < vocab:
            raise invalid(f"token ids go from 0 to {vocab - 1}", where, "out_of_range")
        max_tokens = asked.max_tokens or min(limits.default_max_tokens, room)
        kept = max_tokens * (1 + (asked.logprobs or 0))
        if asked.logprobs is not None and not asked.stream and kept > limits.kept_log_probs:
            raise invalid(
                f"{max_tokens} tokens with logprobs are kept only when streamed; at most "
                f"{limits.kept_log_probs // (1 + asked.logprobs)} otherwise",
                "max_tokens",
                "out_of_range",
            )
        return {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "seed": asked.seed,
            "logprobs": asked.logprobs,
            "ignore_eos": asked.ignore_eos,
        }

    def _submit(self, values: dict[str, Any], sink: WholeSink | StreamSink) -> Ticket:
        try:
            return self._service.table.submit(values, sink)
        except QueueFull:
            raise ApiError(
                429,
                f"{self._service.table.max_queue} requests wait already",
                code="queue_full",
                headers={"retry-after": "1"},
            ) from None

    async def _whole(
        self, asked: Asked, answer: Answer, values: dict[str, Any],
        scope: Scope, receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        sink = WholeSink(answer, asked.logprobs is not None)
        created = int(time.time())
        began = time.monotonic_ns()
        ticket = self._submit(values, sink)
        try:
            await _unless_gone(sink.over, receive)
        finally:
            self._service.table.cancel(ticket)
        if sink.error:
            self._service.metrics.failed += 1
            raise ApiError(*sink.error, code="engine_error")
        self._service.metrics.finished += 1
        self._service.metrics.first_token.observe((sink.first_ns - began) / 1e9)
        body = whole(
            id=_new_id(asked.chat), created=created, model=asked.model, chat=asked.chat,
            text=sink.text, log_probs=sink.log_probs, finish=answer.finish, usage=answer.usage(),
        )  # fmt: skip
        await send_json(send, 200, body)

    async def _stream(
        self, asked: Asked, answer: Answer, values: dict[str, Any],
        scope: Scope, receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        metrics = self._service.metrics
        frames = Frames(
            id=_new_id(asked.chat), created=int(time.time()), model=asked.model, chat=asked.chat,
            include_usage=asked.include_usage,
        )  # fmt: skip
        sink = StreamSink(
            answer, frames, scope["extensions"][TRANSPORT], metrics,
            self._service.codec.json_table, with_log_probs=asked.logprobs is not None, plain=not asked.stop,
            include_usage=asked.include_usage,
            buffer_bytes=self._service.settings.limits.buffer_bytes,
            stamped=_ASK_FOR_STAMPS in dict(scope["headers"]),
        )  # fmt: skip
        began = time.monotonic_ns()
        ticket = self._submit(values, sink)
        try:
            await _unless_gone(sink.first, receive)
            if sink.error and not sink.first_ns:
                metrics.failed += 1
                raise ApiError(*sink.error, code="engine_error")
            metrics.first_token.observe((sink.first_ns - began) / 1e9)
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            sink.open()
            await _unless_gone(sink.over, receive)
        finally:
            self._service.table.cancel(ticket)
        last = b""
        if sink.error:
            metrics.failed += 1
            last = sink.error_event()
        else:
            metrics.finished += 1
        await send({"type": "http.response.body", "body": last, "more_body": False})


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"transfer-encoding", b"chunked"),
]


async def _unless_gone(awaited: asyncio.Future[None], receive: Receive) -> None:
    """Wait for the engine; raise Disconnected when the client goes first."""
    if awaited.done():
        return
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((awaited, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
    if not awaited.done():
        raise Disconnected


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(
    send: Send, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def send_error(send: Send, fault: ApiError) -> Awaitable[None]:
    return send_json(send, fault.status, fault.body(), fault.headers)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


def _new_id(chat: bool) -> str:
    return ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
