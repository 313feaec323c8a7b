"""The server's own lines stay whole in a log that others write to as well."""

from __future__ import annotations

import io
import sys

import pytest

from dih20.serve.log import say


class _Writes(io.RawIOBase):
    """Keeps each write apart."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if data:  # an empty one puts nothing between two others
            self.seen.append(bytes(data))
        return len(data)


def test_a_line_and_its_end_are_one_write_also_unbuffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under PYTHONUNBUFFERED; between two writes a guard's line could come."""
    writes = _Writes()
    out = io.TextIOWrapper(writes, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", out)
    say("ready after 1.0 s")
    assert writes.seen == [b"[serve] ready after 1.0 s\n"]
