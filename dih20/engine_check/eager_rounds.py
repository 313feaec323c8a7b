"""Stages that share an engine, and faults of stage h beside them, in rounds until nothing is left."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dih20.engine_check import results
from dih20.engine_check.accounting import account
from dih20.engine_check.hypotheses import Hypothesis
from dih20.engine_check.launching import Launcher
from dih20.engine_check.processes import Ended, WorkerProcess, wait_all
from dih20.engine_check.stage_faults import left
from dih20.engine_check.worker import START

Starter = Callable[[], WorkerProcess]
_MOST_ROUNDS = 16
_MOST_TRIES = 2


class EagerRounds:
    """Each round starts engines for what is open; one that broke costs its stage, the rest get new engines.

    warm: set once an engine has started, which means that kernels are compiled.
    each_round: called while engines run.
    """

    def __init__(
        self,
        launcher: Launcher,
        here: dict[str, Any],
        warm: threading.Event,
        each_round: Callable[[], None],
    ) -> None:
        self.launcher, self.here, self.warm, self.each_round = launcher, here, warm, each_round
        self.work = launcher.options.folder
        self._failed_starts = 0
        self._tries = Counter[
            str
        ]()  # of faults in engines of their own that broke before the fault
        self._apart = False  # a fault has ended the engine that others shared

    def run(self, letters: Sequence[str]) -> None:
        """Run stages until each has a record, or no engine starts."""
        for _ in range(_MOST_ROUNDS):
            engines = self._engines([letter for letter in letters if self._is_open(letter)])
            if not engines or not self._go_on(self._run_engines(engines)):
                return

    def _is_open(self, letter: str) -> bool:
        """Whether a stage still has something to run."""
        found = results.read_json(results.record_path(self.work, letter))
        if letter == "h":
            ended = (found or {}).get("verdict") in (results.DIED, results.LATE)
            return not ended and bool(self._faults())
        return found is None

    def _faults(self) -> list[Hypothesis]:
        given = left(self.work, self.launcher.options.only, self.here["sources"])
        return [each for each in given if self._tries[each.name] < _MOST_TRIES]

    def _engines(self, waiting: Sequence[str]) -> list[Starter]:
        """Give one engine for all stages, and beside it one for each fault that may end its engine.

        Once a fault has ended the engine that it shared with others, each has its own.
        """
        faults = self._faults() if "h" in waiting else []
        alone = [each.name for each in faults if each.may_stop or self._apart]
        engines = list[Starter]()
        if any(letter != "h" for letter in waiting) or len(alone) < len(faults):
            engines.append(partial(self.launcher.engine, "eager", list(waiting)))
        room = max(self.launcher.options.together, 1) - len(engines)
        alone = alone[: max(room, 0 if engines else 1)]
        return engines + [partial(self.launcher.engine, "eager", ["h"], name) for name in alone]

    def _run_engines(self, waiting: list[Starter]) -> list[Ended]:
        """Start the first; the others once it has started: with cold caches, each would compile alike."""
        processes = [waiting.pop(0)()]

        def each_round() -> None:
            self.each_round()
            if processes[0].doing()["stage"] != START:
                self.warm.set()
                processes.extend(start() for start in waiting)
                waiting.clear()

        return wait_all(processes, each_round)

    def _go_on(self, ended: Sequence[Ended]) -> bool:
        """Write what became of engines that broke; say whether it makes sense to start more.

        The first engine that is too slow to start is started once more: it finds what has been compiled.
        """
        failed = [how for how in ended if how.broke and how.stage == START]
        again = not self._failed_starts and all(how.late or how.fault for how in failed)
        self._failed_starts += len(failed)
        for how in ended:
            if how.broke and how.fault and how.part != how.fault:
                self._tries[how.fault] += 1
            if how in failed and again and not how.fault:
                self.launcher.say(
                    f"{how.name}: too slow to start; once more, with what it compiled"
                )
                continue
            fault = account(how, self.work, self.here)
            self._apart = self._apart or (fault is not None and not fault.may_stop)
        if failed and not again:
            self.launcher.say(f"the engine did not start: see {self.work}/log-{failed[0].name}.txt")
            return False
        return True
