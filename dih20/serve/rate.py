"""Events per second over the last moments, at constant cost per event."""

from __future__ import annotations

SLOTS = 10


class Rate:
    """Count events in slots of a window that moves on.

    Times are seconds of any clock that never goes back.
    """

    def __init__(self, window_s: float = 10.0) -> None:
        self._slot_s = window_s / SLOTS
        self._counts = [0] * SLOTS
        self._newest: int | None = None  # number of the slot that counts now
        self._first = 0  # number of the slot of the first event ever

    def add(self, count: int, now: float) -> None:
        self._move_to(now)
        self._counts[int(now / self._slot_s) % SLOTS] += count

    def per_s(self, now: float) -> float:
        """Give the mean over the window, or over the time since the first event if that is shorter."""
        if self._newest is None:
            return 0.0
        self._move_to(now)
        slots = min(SLOTS, self._newest - self._first + 1)
        # the newest slot has lasted only in part
        lasted_s = (slots - 1) * self._slot_s + now % self._slot_s
        return sum(self._counts) / max(lasted_s, self._slot_s)

    def _move_to(self, now: float) -> None:
        slot = int(now / self._slot_s)
        if self._newest is None:
            self._newest = self._first = slot
        for passed in range(self._newest + 1, min(slot, self._newest + SLOTS) + 1):
            self._counts[passed % SLOTS] = 0
        self._newest = max(slot, self._newest)
