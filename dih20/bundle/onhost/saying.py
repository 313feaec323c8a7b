"""What is printed on the host: one line per step, at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[list[str]]:
    """Print what was done, notes that the body adds, and the seconds it took."""
    notes: list[str] = []
    started = time.monotonic()
    sign = "✗"
    try:
        yield notes
        sign = "✓"
    finally:
        note = f"  {'; '.join(notes)}" if notes else ""
        say(f"{sign} {what}{note}  {time.monotonic() - started:.1f} s")
