"""/v1/completions and /v1/chat/completions, as plain ASGI: one request from body to last byte."""

from __future__ import annotations

import time
import uuid
from typing import Any

from starlette.types import Receive, Scope, Send

from dih20.serve.api.answer import Answer
from dih20.serve.api.auth import authorise
from dih20.serve.api.errors import ApiError
from dih20.serve.api.exchange import (
    STREAM_HEADERS,
    Disconnected,
    read_body,
    send_error,
    send_json,
    unless_gone,
)
from dih20.serve.api.frames import Frames, whole
from dih20.serve.api.params import Asked, parse
from dih20.serve.api.prompting import Prompting
from dih20.serve.api.protocol import TRANSPORT
from dih20.serve.api.sinks import WholeSink
from dih20.serve.api.stream_sink import StreamSink
from dih20.serve.requests import QueueFull, Ticket
from dih20.serve.service import Service

_ASK_FOR_STAMPS = b"x-dih20-emitted"  # for measuring: each token comes with the time of its step

_ENGINE_ERROR = "engine_error"


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
            if fault.code != _ENGINE_ERROR:
                metrics.refused += 1
            metrics.responses.labels(self._kind, str(fault.status)).inc()
            await send_error(send, fault)
        except Disconnected:
            metrics.cancelled += 1

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        began_ns = time.monotonic_ns()
        authorise(service.tokens, scope["headers"])
        limits = service.settings.limits
        body = await read_body(scope, receive, limits.body_bytes)
        asked = parse(body, self._kind, limits)
        if asked.model != service.settings.served_name:
            raise ApiError(
                404,
                f"the model {asked.model[:200]!r} does not exist; served is "
                f"{service.settings.served_name!r}",
                param="model",
                code="model_not_found",
            )
        if asked.stream and scope["http_version"] == "1.0":
            raise ApiError(
                400, "a stream needs HTTP/1.1 (in nginx: proxy_http_version 1.1)", param="stream"
            )
        self._require_ready()
        values = await Prompting(service, asked).engine_values()
        answer = Answer(asked, service.codec, len(values["prompt"]))
        service.metrics.prompt_tokens += len(values["prompt"])
        respond = self._stream if asked.stream else self._whole
        await respond(asked, answer, values, scope, receive, send)
        service.metrics.request_time.observe((time.monotonic_ns() - began_ns) / 1e9)

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

    def _submit(self, values: dict[str, Any], sink: WholeSink | StreamSink) -> Ticket:
        self._require_ready()  # again: the prompt may have taken its time
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
            await unless_gone(sink.over, receive)
        finally:
            self._service.table.cancel(ticket)
        if sink.error:
            self._service.metrics.failed += 1
            raise ApiError(*sink.error, code=_ENGINE_ERROR)
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
            await unless_gone(sink.first, receive)
            if sink.error and not sink.first_ns:
                metrics.failed += 1
                raise ApiError(*sink.error, code=_ENGINE_ERROR)
            metrics.first_token.observe((sink.first_ns - began) / 1e9)
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            sink.open()
            await unless_gone(sink.over, receive)
        finally:
            self._service.table.cancel(ticket)
        last = b""
        if sink.error:
            metrics.failed += 1
            last = sink.error_event()
        else:
            metrics.finished += 1
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _new_id(chat: bool) -> str:
    return ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
