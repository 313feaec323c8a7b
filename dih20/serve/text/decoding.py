"""Tokens to text as they come: never half a character, never part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextDecoder:
    """Decode one answer's tokens; characters that are spread over tokens come out whole."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Give the text that is certain now; empty while a character is incomplete."""
        return self._utf8.decode(self._table[token])

    @property
    def is_whole(self) -> bool:
        """Say whether no character is incomplete, so that a whole token can be shown as it is."""
        return not self._utf8.getstate()[0]

    def end(self) -> str:
        """Give what is left: U+FFFD for a character that never became whole."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Let text through until one of the strings appears, also across pieces."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Give the text before the first stop string; what could still become one is held."""
        if self.found is not None:
            return ""
        text = self._held + text
        places = [(at, s) for s in self._strings if (at := text.find(s)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            self._held = ""
            return text[:at]
        keep = self._beginning_at_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """Give what was held: the answer ended before it became a stop string."""
        held, self._held = self._held, ""
        return held

    def _beginning_at_end(self, text: str) -> int:
        """Give how many last characters begin a stop string."""
        longest = max((len(s) for s in self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(s.startswith(tail) for s in self._strings):
                return length
        return 0
