"""All ranks of one start: begun, woken and ended together."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from dih20.serve.engines import guard
from dih20.serve.log import say
from dih20.serve.ranks import GUARDS, Message, RankProcess
from dih20.serve.settings import Settings


class Fleet:
    """All ranks of one start."""

    def __init__(self, settings: Settings, hear: Callable[[RankProcess, Message], None]) -> None:
        self._settings = settings
        self.ranks = [RankProcess(rank, hear) for rank in range(settings.ranks)]
        self._folder = tempfile.TemporaryDirectory(prefix="dih20-serve-")
        self._wakes, self._stopped = 0, False

    async def start(self) -> None:
        guard.prctl(guard.SET_SUBREAPER, 1)
        environment = os.environ | self._settings.environment | {"PYTHONUNBUFFERED": "1"}
        paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        for rank in self.ranks:
            first = {
                "t": "start",
                "settings": self._settings.model_dump(mode="json"),
                "rank": rank.rank,
                "ranks": len(self.ranks),
                "rendezvous": self._folder.name,
            }
            await rank.start(first, environment)
            assert rank.guard is not None
            GUARDS.add(rank.guard.pid)

    def add(self, rank: RankProcess, requests: list[Message]) -> None:
        """Give requests to one rank and wake the others."""
        self._wakes += 1
        for each in self.ranks:
            if each is rank:
                each.send({"t": "add", "wakes": self._wakes, "r": requests})
            else:
                each.send({"t": "wake", "wakes": self._wakes})

    def drain(self) -> None:
        for rank in self.ranks:
            rank.send({"t": "drain"})

    async def stop(self, patience_s: float) -> list[int]:
        """End all ranks, by asking and then by force; give the pids that would not die."""
        if self._stopped:
            return []
        self._stopped = True
        self._wakes += 1
        started = [rank for rank in self.ranks if rank.guard is not None]
        for rank in started:
            rank.send({"t": "close", "wakes": self._wakes})
        # a rank that is still loading does not read what it is asked
        ready = [rank for rank in started if rank.info is not None]
        asked = patience_s > 0 and len(ready) == len(started)
        if asked and not await _all_ended(started, patience_s):
            say(f"ranks did not end in {patience_s:g} s; killing them")
        for rank in started:
            rank.kill()
        await _all_ended(started, 10.0)
        self._folder.cleanup()
        return [pid for rank in started for pid in rank.left]


async def _all_ended(ranks: list[RankProcess], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            for rank in ranks:
                await rank.ended.wait()
    except TimeoutError:
        return False
    return True
