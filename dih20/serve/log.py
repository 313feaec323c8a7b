"""The server's own lines, beside those of the ranks."""

from __future__ import annotations

import contextlib


def say(text: str) -> None:
    """Print a line marked [serve]; whoever read our output may be gone, and that ends nothing."""
    with contextlib.suppress(OSError):
        # one write: unbuffered, print gives text and newline apart, and guards write there too
        print(f"[serve] {text}\n", end="", flush=True)
