"""Request bodies to what the engine is asked: each field checked, none ignored in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dih20.serve.api.errors import invalid
from dih20.serve.api.fields import MOST_LOGPROBS, Fields, json_object
from dih20.serve.settings import Limits


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A checked request. prompt: text or ids; messages: chat only."""

    chat: bool
    model: str
    prompt: str | list[int]
    messages: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: list[str]
    logprobs: int | None
    ignore_eos: bool


def parse(body: bytes, kind: str, limits: Limits) -> Asked:
    """Read a body of /v1/completions or /v1/chat/completions; raises ApiError."""
    fields = Fields(json_object(body))
    fields.refuse_unknown(kind)
    chat = kind == "chat"
    stream = fields.boolean("stream")
    options = fields.mapping("stream_options")
    if options and not stream:
        raise invalid("stream_options is allowed only with stream: true", "stream_options")
    for key in options:
        if key not in ("include_usage", "include_obfuscation"):
            raise invalid(f"unknown key {key!r} in stream_options", f"stream_options.{key}")
    limit = (
        "max_completion_tokens" if chat and fields.has("max_completion_tokens") else "max_tokens"
    )
    return Asked(
        chat=chat,
        model=fields.required_text("model"),
        prompt="" if chat else fields.prompt(),
        messages=fields.messages() if chat else [],
        stream=stream,
        include_usage=Fields(options, "stream_options.").boolean("include_usage"),
        max_tokens=fields.integer(limit, 1, 1 << 31),
        temperature=fields.number("temperature", 0.0, 2.0, 1.0),
        top_p=fields.number("top_p", 0.0, 1.0, 1.0, above=True),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1),
        stop=fields.stop(limits),
        logprobs=fields.chat_logprobs() if chat else fields.integer("logprobs", 0, MOST_LOGPROBS),
        ignore_eos=fields.boolean("ignore_eos"),
    )
