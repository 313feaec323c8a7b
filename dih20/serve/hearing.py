"""What ranks and guards tell, taken to state, numbers and requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from dih20.errors import EngineStartFailed, RankLost, ServeError
from dih20.serve.metrics import Metrics
from dih20.serve.ranks import Message, RankProcess
from dih20.serve.rate import Rate
from dih20.serve.requests import RequestTable
from dih20.serve.state import STARTING, Phase, State

_ORDER: tuple[Phase, ...] = ("starting", "loading", "warming", "ready")
_SHOWN_LINES = 20


class Hearing:
    """Takes messages; wakes the service for those that change what it does next.

    lost: called with the rank that has ended, when its guard has told how.
    close_timeout_s: for a rank that has closed its channel to end by itself.
    """

    def __init__(
        self,
        state: State,
        metrics: Metrics,
        table: RequestTable,
        *,
        changed: Callable[[], None],
        lost: Callable[[RankProcess], None],
        close_timeout_s: float,
    ) -> None:
        self._state, self._metrics, self._table = state, metrics, table
        self._changed, self._lost, self._close_timeout_s = changed, lost, close_timeout_s
        self._ranks: set[RankProcess] = set()
        self.rate = Rate()

    def hear(self, rank: RankProcess, message: Message) -> None:
        """Take one message of a rank or its guard."""
        kind = message["t"]
        if kind == "step":
            rank.steps, rank.memory = message["n"], message["mem"]
            count = self._table.stepped_with(
                message["e"], message["p"], message["at"]
            )  # first: clients wait for it
            self._metrics.step_time.observe(message["ns"] / 1e9)
            self.rate.add(count, self._table.stepped)
            self._metrics.answer_tokens += count
        elif kind == "line":
            if self._state.phase in STARTING:
                self._state.progress(message["line"])
        elif kind == "phase":
            rank.phase = message["phase"]
            self._follow(rank, message["line"], message["fraction"])
        elif kind == "ready":
            rank.info, rank.phase = message["info"], "ready"
            self._follow(rank, f"rank {rank.rank} is ready", None)
            self._changed()
        elif kind == "hello":
            rank.pid = message["pid"]
            self._follow(rank, f"rank {rank.rank} runs as process {rank.pid}", None)
        elif kind == "fatal":
            rank.fatal = message["message"]
        elif kind == "gone":
            # it is ending by itself most likely, and then its guard tells the exit code
            wait_s = self._close_timeout_s
            because = f"it closed its channel and did not end in close_timeout_s = {wait_s:g} s"
            asyncio.get_running_loop().call_later(wait_s, rank.kill, because)
        elif kind == "ended":
            self._lost(rank)

    def _follow(self, rank: RankProcess, line: str, fraction: float | None) -> None:
        """Show the phase of the slowest rank."""
        self._ranks.add(rank)
        if self._state.phase in _ORDER[:3]:
            slowest = min((each.phase for each in self._ranks), key=_ORDER.index)
            if slowest != "ready":
                self._state.enter(slowest)
            self._state.progress(line, fraction)


def loss_of(rank: RankProcess) -> ServeError:
    """Give the error of a rank that ended unasked: how, why if it said, and its last lines."""
    tail = "\n    ".join(rank.tail[-_SHOWN_LINES:]) or "(nothing)"
    why = f": {rank.fatal}" if rank.fatal else ""
    kind = EngineStartFailed if rank.info is None else RankLost
    return kind(
        found=f"rank {rank.rank} ended {_how(rank)}{why}\n  its last lines:\n    {tail}",
        expected="every rank running",
        remedy="mend what its lines say; all ranks were ended, nothing is left running",
    )


def _how(rank: RankProcess) -> str:
    """Tell our own kill from one that came from elsewhere, such as the kernel's for want of memory."""
    code = rank.exit_code
    if rank.killed_because and code == -signal.SIGKILL:
        return f"by signal {-code} from the server: {rank.killed_because}"
    if code is None:
        return "with no exit code"
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
