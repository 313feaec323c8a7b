"""Request bodies to what the engine is asked: each field checked, none ignored in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dih20.serve.api.errors import ApiError, invalid
from dih20.serve.settings import Limits

_HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
     "prompt_cache_key"}
)  # fmt: skip
_ONLY: Mapping[str, tuple[Any, ...]] = {  # value that changes nothing; others are refused
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
_READ = frozenset(
    {"model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop",
     "logprobs", "ignore_eos"}
)  # fmt: skip
_OWN = {
    "completions": frozenset({"prompt"}),
    "chat": frozenset({"messages", "max_completion_tokens", "top_logprobs"}),
}
_MOST_LOGPROBS = 20


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
    fields = _Fields(_json(body))
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
        include_usage=_Fields(options, "stream_options.").boolean("include_usage"),
        max_tokens=fields.integer(limit, 1, 1 << 31),
        temperature=fields.number("temperature", 0.0, 2.0, 1.0),
        top_p=fields.number("top_p", 0.0, 1.0, 1.0, above=True),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1),
        stop=fields.stop(limits),
        logprobs=fields.chat_logprobs() if chat else fields.integer("logprobs", 0, _MOST_LOGPROBS),
        ignore_eos=fields.boolean("ignore_eos"),
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise invalid(f"the body is not JSON in UTF-8: {fault}", code="invalid_json") from fault
    if not isinstance(values, dict):
        raise invalid("the body must be a JSON object")
    return values


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")


class _Fields:
    """The fields of one object; null is the same as absent, as OpenAI has it."""

    def __init__(self, values: dict[str, Any], prefix: str = "") -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._prefix = prefix

    def has(self, name: str) -> bool:
        return name in self._values

    def refuse_unknown(self, kind: str) -> None:
        known = _READ | _OWN[kind] | _HARMLESS
        for name, value in self._values.items():
            if name in known:
                continue
            allowed = _ONLY.get(name)
            if allowed is None:
                raise invalid(
                    f"unsupported parameter {name!r}", name[:100], code="unsupported_parameter"
                )
            if not any(
                (value == each and type(value) is type(each))
                or (value == each and _kind(value) == "a number" == _kind(each))
                for each in allowed
            ):
                shown = " or ".join(orjson.dumps(each).decode() for each in allowed)
                raise invalid(
                    f"{name} is supported only as {shown}", name, code="unsupported_value"
                )

    def _wrong(self, name: str, expected: str) -> ApiError:
        return invalid(
            f"{self._prefix}{name} must be {expected}, not {_kind(self._values[name])}",
            self._prefix + name,
            code="invalid_type",
        )

    def boolean(self, name: str) -> bool:
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "a boolean")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def required_text(self, name: str) -> str:
        if name not in self._values:
            raise invalid(f"{name} is required", name, code="missing_required_parameter")
        value = self._values[name]
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer")
        if not least <= value <= most:
            raise invalid(f"{name} must be from {least} to {most}", name, code="out_of_range")
        return value

    def number(
        self, name: str, least: float, most: float, default: float, *, above: bool = False
    ) -> float:
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        if not least <= value <= most or (above and value == least):
            first = f"above {least:g}" if above else f"from {least:g}"
            raise invalid(f"{name} must be {first} to {most:g}", name, code="out_of_range")
        return float(value)

    def stop(self, limits: Limits) -> list[str]:
        value = self._values.get("stop", [])
        strings = [value] if isinstance(value, str) else value
        if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
            raise self._wrong("stop", "a string or an array of strings")
        if len(strings) > limits.stop_strings:
            raise invalid(f"stop takes at most {limits.stop_strings} strings", "stop")
        if any(not s or len(s.encode()) > limits.stop_bytes for s in strings):
            raise invalid(f"a stop string has 1 to {limits.stop_bytes} bytes", "stop")
        return strings

    def chat_logprobs(self) -> int | None:
        top = self.integer("top_logprobs", 0, _MOST_LOGPROBS)
        if self.boolean("logprobs"):
            return top or 0
        if top:
            raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
        return None

    def prompt(self) -> str | list[int]:
        value = self._values.get("prompt")
        if value is None:
            raise invalid("prompt is required", "prompt", code="missing_required_parameter")
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and set(map(type, value)) == {int}:
            return value
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            raise invalid("one prompt per request is supported", "prompt", "unsupported_value")
        raise invalid("prompt must be a string or an array of token ids", "prompt", "invalid_type")

    def messages(self) -> list[dict[str, Any]]:
        value = self._values.get("messages")
        if value is None:
            raise invalid("messages is required", "messages", code="missing_required_parameter")
        if not isinstance(value, list) or not value:
            raise invalid("messages must be an array with at least one message", "messages")
        return [_message(message, f"messages[{at}]") for at, message in enumerate(value)]


_ROLES = ("system", "developer", "user", "assistant")


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(f"{where} must be an object", where, "invalid_type")
    for key, value in message.items():
        if key not in ("role", "content", "name") and value not in (None, [], ""):
            raise invalid(f"{where}.{key} is not supported", f"{where}.{key}"[:200])
    role = message.get("role")
    if role not in _ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{at}]") for at, part in enumerate(content))
    if not isinstance(content, str):
        raise invalid(f"{where}.content must be a string", f"{where}.content", "invalid_type")
    return {"role": "system" if role == "developer" else role, "content": content}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise invalid(f"{where}: only parts of type text are supported", where)
    if not isinstance(part.get("text"), str):
        raise invalid(f"{where}.text must be a string", f"{where}.text", "invalid_type")
    return str(part["text"])
