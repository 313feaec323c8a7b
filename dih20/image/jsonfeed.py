"""Read the stream of JSON objects that the engine answers with, however its chunks are cut.

A chunk may hold two objects, half an object or half a character, and a compiler's output inside
it may not be UTF-8 at all. Nothing of that may stop the reader: a log that breaks off is worse
than a log with a replaced character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any


class JsonFeed:
    """Collect bytes, give complete objects.

    Example:
        feed = JsonFeed()
        objects = [*feed.feed(b'{"stream":"a"}{"str'), *feed.feed(b'eam":"b"}'), *feed.close()]
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._json = json.JSONDecoder(strict=False)  # raw control characters are output, not faults
        self._text = ""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Give the objects that are complete now."""
        self._text += self._decoder.decode(chunk)
        yield from self._complete()

    def close(self) -> Iterator[dict[str, Any]]:
        """Give what is left; text that never became an object comes as a `stream` of its own."""
        self._text += self._decoder.decode(b"", final=True)
        yield from self._complete()
        if self._text.strip():
            yield {"stream": self._text}
        self._text = ""

    def _complete(self) -> Iterator[dict[str, Any]]:
        while True:
            self._text = self._text.lstrip()
            if not self._text:
                return
            if self._text[0] != "{":
                line, newline, rest = self._text.partition("\n")
                if not newline:
                    return
                self._text = rest
                yield {"stream": line + "\n"}
                continue
            try:
                found, end = self._json.raw_decode(self._text)
            except json.JSONDecodeError:
                return
            self._text = self._text[end:]
            yield found


def objects(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Give every object of a chunked answer, then what was left over."""
    feed = JsonFeed()
    for chunk in chunks:
        yield from feed.feed(chunk)
    yield from feed.close()
