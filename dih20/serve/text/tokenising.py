"""Work on long prompts beside the event loop, one at a time.

A body of a megabyte takes a tokenizer seconds and a hundred megabytes. Without bounds a few clients
that send such bodies stop the tokens of all others: 32 of them for minutes, with over a gigabyte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Busy(Exception):
    """Enough long prompts wait for their turn."""


class Tokenising:
    """A thread for long prompts, and a bound on how many wait for it."""

    def __init__(self, most: int) -> None:
        self._most, self._unfinished = most, 0
        self._thread = ThreadPoolExecutor(1, "tokenise")

    async def run(self, work: Callable[[], list[int]]) -> list[int]:
        """Give what the work gives; raises Busy at once when too much waits."""
        if self._unfinished >= self._most:
            raise Busy
        loop = asyncio.get_running_loop()
        self._unfinished += 1
        job = self._thread.submit(work)
        # work goes on when who asked for it is gone, so it counts until it is done
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(self._finished))
        return await asyncio.wrap_future(job)

    def _finished(self) -> None:
        self._unfinished -= 1
