"""Where each rank is, in a small file that all ranks of one host map.

When an exchange fails, gloo says that some connection broke or timed out, not which rank is at
fault. Every rank writes its process id and counts the exchanges it enters; the one that is gone,
stopped or behind can then be named, also by a rank that only lost the one that lost it.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_RECORD = struct.Struct("<qqqq")  # process id, exchanges entered, 1 when loaded, 1 + rank blamed
_GONE = ("X", "Z")
_STOPPED = ("T", "t")
_LOOK_AGAIN_S = 1.0


class Whereabouts:
    """The file, mapped by one rank. Fields are written by their own rank only."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, ranks * _RECORD.size)  # the same length by every rank
            self._map = mmap.mmap(descriptor, ranks * _RECORD.size)
        finally:
            os.close(descriptor)
        self._entered, self._loaded, self._blamed = 0, 0, 0
        self._write()

    def enter(self) -> None:
        """Count one exchange: about a microsecond."""
        self._entered += 1
        self._write()

    def loaded(self) -> None:
        self._loaded = 1
        self._write()

    def not_loaded(self) -> list[int]:
        """Give the ranks that have not said loaded()."""
        return [rank for rank in range(self.ranks) if not self._read(rank)[2]]

    def gone(self) -> list[int]:
        """Give the ranks that came and whose process has ended."""
        return [rank for rank in self._others() if self._state(rank) in _GONE]

    def culprit(self) -> tuple[int | None, str]:
        """Give the rank because of which this one cannot go on, and what it is doing.

        A dying process closes its connections before the kernel shows it as ended, so that looking
        once is not enough.
        """
        until = time.monotonic() + _LOOK_AGAIN_S
        while (cause := self._cause_seen()) is None and time.monotonic() < until:
            time.sleep(0.02)
        found, text = cause or self._behind()
        self._blamed = 0 if found is None else 1 + found
        self._write()
        return found, text

    def _cause_seen(self) -> tuple[int, str] | None:
        blamed = {rank: self._read(rank)[3] - 1 for rank in self._others()}
        for rank, other in blamed.items():
            if other not in (-1, self.rank):
                return other, f"{self._called(other)} was lost, says rank {rank}"
        for rank, other in blamed.items():
            if other == self.rank:
                return rank, f"{self._called(rank)} has given this rank up"
        for states, what in ((_GONE, "has ended"), (_STOPPED, "is stopped by a signal")):
            for rank in self._others():
                if self._state(rank) in states:
                    return rank, f"{self._called(rank)} {what}"
        return None

    def _behind(self) -> tuple[int | None, str]:
        behind = min(self._others(), key=lambda rank: self._read(rank)[1], default=self.rank)
        entered = self._read(behind)[1]
        if entered < self._entered:
            place = f"exchange {entered}, this rank in {self._entered}"
            return behind, f"{self._called(behind)} is alive and stays in {place}"
        return None, f"all ranks are alive and in exchange {self._entered}"

    def _others(self) -> list[int]:
        return [rank for rank in range(self.ranks) if rank != self.rank]

    def _called(self, rank: int) -> str:
        return f"rank {rank} (process {self._read(rank)[0]})"

    def _state(self, rank: int) -> str:
        """Give the kernel's letter of a rank's process; X when there is none, ? before it came."""
        process = self._read(rank)[0]
        if not process:
            return "?"
        try:
            status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return "X"
        return status.rpartition(")")[2].split()[0]

    def _read(self, rank: int) -> tuple[int, int, int, int]:
        process, entered, loaded, blamed = _RECORD.unpack_from(self._map, rank * _RECORD.size)
        return process, entered, loaded, blamed

    def _write(self) -> None:
        values = (os.getpid(), self._entered, self._loaded, self._blamed)
        _RECORD.pack_into(self._map, self.rank * _RECORD.size, *values)

    def close(self) -> None:
        self._map.close()
