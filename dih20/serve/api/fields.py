"""The fields of a request's body, each read with its kind and range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from dih20.serve.api.errors import ApiError, invalid
from dih20.serve.api.messages import read_message
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
MOST_LOGPROBS = 20


def json_object(body: bytes) -> dict[str, Any]:
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


def _same(value: Any, allowed: Any) -> bool:
    """Compare as JSON does: 1 is 1.0, and neither is true."""
    return bool(value == allowed) and _kind(value) == _kind(allowed)


class Fields:
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
            if not any(_same(value, each) for each in allowed):
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
        top = self.integer("top_logprobs", 0, MOST_LOGPROBS)
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
        return [read_message(message, f"messages[{at}]") for at, message in enumerate(value)]
