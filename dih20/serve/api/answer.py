"""One answer as it grows: text, log-probs, usage, why it ended."""

from __future__ import annotations

import math
from typing import Any

from dih20.serve.api.params import Asked
from dih20.serve.text.codec import Codec
from dih20.serve.text.decoding import StopStrings


def without_end(tokens: list[int], finish: str | None) -> list[int]:
    """Leave out the end token, which is no part of the text."""
    return tokens[:-1] if finish == "stop" else tokens


class Answer:
    """Turns emissions into what a client is shown."""

    def __init__(self, asked: Asked, codec: Codec, prompt_tokens: int) -> None:
        self._table, self._names = codec.table, codec.tokenizer.id_to_token
        self._decoder, self._stops = codec.decoder(), StopStrings(asked.stop)
        self._has_stops, self._chat = bool(asked.stop), asked.chat
        self.prompt_tokens, self.tokens = prompt_tokens, 0
        self.finish: str | None = None
        self._shown = 0  # characters, for text_offset

    def take(self, tokens: list[int], finish: str | None) -> str:
        """Give the text that a client may see now; sets finish when the answer is over."""
        self.tokens += len(tokens)
        feed = self._decoder.feed
        text = "".join([feed(each) for each in without_end(tokens, finish)])
        if finish is not None:
            text += self._decoder.end()
            self.finish = finish
        if self._has_stops:
            text = self._stops.feed(text)
            if self._stops.found is not None:
                self.finish = "stop"
            elif finish is not None:
                text += self._stops.end()
        return text

    @property
    def is_whole(self) -> bool:
        """Say whether no character is incomplete."""
        return self._decoder.is_whole

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        }

    def log_probs(
        self, tokens: list[int], values: list[float | None], top: list[list[list[Any]]]
    ) -> dict[str, Any]:
        """Give tokens' log-probs in the shape of the route; the end token is left out."""
        tops = top or [[] for _ in tokens]
        rows = [
            (self._text(token), self._table[token], _finite(value), best)
            for token, value, best in zip(tokens, values, tops, strict=True)
        ]
        return self._chat_shape(rows) if self._chat else self._completion_shape(rows)

    def _text(self, token: int) -> str:
        return self._table[token].decode(errors="replace") or self._names(token) or ""

    def _chat_shape(self, rows: list[tuple[str, bytes, float, list[Any]]]) -> dict[str, Any]:
        return {
            "content": [
                {
                    "token": text,
                    "logprob": value,
                    "bytes": list(data),
                    "top_logprobs": [
                        {
                            "token": self._text(token),
                            "logprob": _finite(each),
                            "bytes": list(self._table[token]),
                        }
                        for token, each in best
                    ],
                }
                for text, data, value, best in rows
            ],
            "refusal": None,
        }

    def _completion_shape(self, rows: list[tuple[str, bytes, float, list[Any]]]) -> dict[str, Any]:
        offsets = []
        for text, *_ in rows:
            offsets.append(self._shown)
            self._shown += len(text)
        return {
            "tokens": [text for text, *_ in rows],
            "token_logprobs": [value for _, _, value, _ in rows],
            "top_logprobs": [
                {self._text(token): _finite(each) for token, each in best} for *_, best in rows
            ],
            "text_offset": offsets,
        }


class NotANumber(Exception):
    """A log-prob is NaN: what the engine says is worthless."""


def _finite(value: float | None) -> float:
    """Give a number that JSON can carry; OpenAI writes -9999 for what is impossible."""
    if value is None or math.isnan(value):
        raise NotANumber
    return max(value, -9999.0)
