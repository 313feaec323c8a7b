"""What the server is doing: phase, since when, how far, and how long the last start took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from dih20.serve.log import say

Phase = Literal[
    "starting", "loading", "warming", "gating", "ready", "draining", "failed", "stopped"
]
STARTING: tuple[Phase, ...] = ("starting", "loading", "warming", "gating")


class State:
    """The phase and its evidence. Times are of the monotonic clock, in seconds."""

    def __init__(self, last_start: LastStart, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self._last_start = clock, last_start
        self.phase: Phase = "starting"
        self.started = self.phase_since = self.progressed = clock()
        self.line, self.reason = "", ""
        self.fraction: float | None = None
        self._spent: dict[str, float] = {}

    def enter(self, phase: Phase) -> None:
        if phase == self.phase:
            return
        now = self.clock()
        self._spent[self.phase] = round(now - self.phase_since, 3)
        self.phase, self.phase_since, self.progressed = phase, now, now
        self.fraction = None
        if phase == "ready":
            self._last_start.write(round(now - self.started, 3), self._spent)

    def progress(self, line: str, fraction: float | None = None) -> None:
        """Note a sign of life."""
        self.progressed = self.clock()
        if line:
            self.line = line[:500]
        if fraction is not None:
            self.fraction = min(1.0, max(0.0, fraction))

    def fail(self, reason: str) -> None:
        self.enter("failed")
        self.reason = reason

    @property
    def phases_s(self) -> dict[str, float]:
        """Give the seconds spent in each phase, the current one included."""
        return {**self._spent, self.phase: round(self.phase_elapsed_s, 3)}

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def phase_elapsed_s(self) -> float:
        return self.clock() - self.phase_since

    @property
    def eta_s(self) -> float | None:
        """Give the seconds until ready when this start is like the last; None when unknown."""
        if self.phase not in STARTING or self._last_start.total_s is None:
            return None
        return max(0.0, self._last_start.total_s - self.elapsed_s)


class LastStart:
    """How long the last start of the same engine, model and rank count took."""

    def __init__(self, folder: Path | None, subject: dict[str, Any]) -> None:
        self._file = folder / "last-start.json" if folder else None
        self._subject = subject
        self.total_s: float | None = None
        if self._file is None:
            return
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            if found["subject"] == subject:
                self.total_s = float(found["total_s"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as fault:
            say(f"{self._file} is not readable, so there is no ETA: {fault}")

    def write(self, total_s: float, phases: dict[str, float]) -> None:
        if self._file is None:
            return
        values = {"subject": self._subject, "total_s": total_s, "phases_s": phases}
        try:
            write_json(self._file, values)
        except OSError as fault:
            say(f"{self._file}: {fault}; the next start has no ETA")


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(values) + "\n", encoding="utf-8")
    beside.replace(path)
