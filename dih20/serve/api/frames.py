"""The bytes of stream events and whole responses, put together without building objects."""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
_OBJECTS = {
    # chat, stream
    (False, False): "text_completion",
    (False, True): "text_completion",
    (True, False): "chat.completion",
    (True, True): "chat.completion.chunk",
}


class Frames:
    """Events of one stream: what is the same in each is made once."""

    def __init__(
        self, *, id: str, created: int, model: str, chat: bool, include_usage: bool
    ) -> None:
        common = {"id": id, "object": _OBJECTS[chat, True], "created": created, "model": model}
        start = orjson.dumps(common)[:-1]
        self._usage = b',"usage":null' if include_usage else b""
        self._start = b"data: " + start
        opened = b',"choices":[{"index":0,' + (b'"delta":{' if chat else b"")
        self._text = b'"content":' if chat else b'"text":'
        self._close = b"}" if chat else b""
        self._opened = self._start + opened
        self.head = self._opened + self._text
        self.tail = self._tail(b"null", b"null")
        self._chat = chat

    def _tail(self, log_probs: bytes, finish: bytes) -> bytes:
        ends = self._close + b',"logprobs":' + log_probs + b',"finish_reason":' + finish
        return ends + b"}]" + self._usage + b"}\n\n"

    def role(self) -> bytes:
        """Give a chat's first event; completions have none."""
        if not self._chat:
            return b""
        return self._opened + b'"role":"assistant","content":""' + self.tail

    def text(self, text: str, log_probs: dict[str, Any] | None = None) -> bytes:
        if log_probs is None:
            return self.head + orjson.dumps(text) + self.tail
        return self.head + orjson.dumps(text) + self._tail(orjson.dumps(log_probs), b"null")

    def finish(self, reason: str) -> bytes:
        finish = orjson.dumps(reason)
        if self._chat:
            return self._opened + self._tail(b"null", finish)
        return self.head + b'""' + self._tail(b"null", finish)

    def usage(self, usage: dict[str, int]) -> bytes:
        return self._start + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"


def error_event(error: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(error) + b"\n\n"


def whole(
    *,
    id: str,
    created: int,
    model: str,
    chat: bool,
    text: str,
    log_probs: dict[str, Any] | None,
    finish: str | None,
    usage: dict[str, int],
) -> bytes:
    """Give the body of a response that is not streamed."""
    choice: dict[str, Any] = {"index": 0, "logprobs": log_probs, "finish_reason": finish}
    if chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    return orjson.dumps(
        {
            "id": id,
            "object": _OBJECTS[chat, False],
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }
    )
