"""The one condition both buffers share."""

from __future__ import annotations

from typing import Any

from h20_ops.errors import UnsupportedError


def want_one_rank(group: Any, buffer: str, real: str) -> None:
    """Refuse a process group of more than one rank; None counts as one rank."""
    size = 1 if group is None else group.size()
    if size != 1:
        raise UnsupportedError(
            f"{buffer} for a group of {size} ranks",
            "one rank: nothing is sent anywhere",
            f"use deep_ep.{real} of the deep_ep wheel for {size} ranks",
        )


class Done:
    """What the engine waits for; the work is on the current stream already."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def current_stream_wait(self) -> Any:
        """Give the result; nothing to wait for."""
        return self._value
