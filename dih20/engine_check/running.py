"""Run the stages: engines in processes of their own, records kept, stages that passed left out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dih20.engine_check import here as this_machine
from dih20.engine_check import reference, results
from dih20.engine_check.accounting import account
from dih20.engine_check.composing import compose
from dih20.engine_check.engine_environment import environment
from dih20.engine_check.judge import JUDGED
from dih20.engine_check.options import Options
from dih20.engine_check.processes import Ended, WorkerProcess, check_stop, wait_all
from dih20.engine_check.stage_faults import left
from dih20.engine_check.stage_graphs import EAGER, GRAPHS, OVERLAPPED
from dih20.engine_check.stage_parity import READY
from dih20.engine_check.stages import START_S, Stage, chosen, stage
from dih20.engine_check.worker import START

Say = Callable[[str], None]
Starter = Callable[[], WorkerProcess]
_JUDGE_S = 600
_MOST_STARTS = 16


class Check:
    """One run of the chosen stages."""

    def __init__(self, options: Options, say: Say) -> None:
        self.options, self.say = options, say
        self.work = options.folder
        self.work.mkdir(parents=True, exist_ok=True)
        self.here = this_machine.facts(options.tree_folder)
        self.sources: dict[str, str] = self.here["sources"]
        self._judge: WorkerProcess | None = None
        self._warm = threading.Event()  # an engine has started: kernels are compiled
        self._apart = False  # a fault has ended the engine that others shared

    def run(self) -> list[dict[str, Any]]:
        """Run what has not passed yet with these sources; give the records of all that were chosen."""
        picked = chosen(self.options.stage)
        todo = [each for each in picked if self._is_due(each)]
        if any(each.worker != "upstream" for each in todo):
            reference.load(self.options.reference)  # refuse before anything starts
        for each in todo:
            self._forget(each.letter)
        eager = [each.letter for each in todo if each.worker == "eager"]
        groups: list[Callable[[], object]] = []
        if eager:
            groups.append(lambda: self._run_eager(eager))
        if any(each.letter == "g" for each in todo):
            groups.append(self._run_graphs)
        if any(each.letter == "a" for each in todo):
            from dih20.engine_check.upstream_tests import run_upstream_tests

            groups.append(lambda: run_upstream_tests(self.options, self.work, self.here, self.say))
        beside = len(groups) if self.options.parallel else 1
        if not eager:
            self._warm.set()
        with ThreadPoolExecutor(max_workers=max(beside, 1)) as threads:
            for done in [threads.submit(group) for group in groups]:
                done.result()
        return [self._record(each.letter) for each in picked]

    def _is_due(self, each: Stage) -> bool:
        if self.options.again or not results.passed_already(self.work, each.letter, self.sources):
            return True
        self.say(f"{each.letter} passed already with these sources")
        return False

    def _forget(self, letter: str) -> None:
        """Remove what an earlier run left of a stage; results of single faults stay, unless --again."""
        names = {"e": (READY, JUDGED), "g": (EAGER, GRAPHS, OVERLAPPED)}.get(letter, ())
        for path in (results.record_path(self.work, letter), *(self.work / name for name in names)):
            path.unlink(missing_ok=True)
        if letter == "h" and self.options.again:
            for path in self.work.glob("fault-*.json"):
                path.unlink()

    def _record(self, letter: str) -> dict[str, Any]:
        found = results.read_json(results.record_path(self.work, letter))
        if found is None:
            found = results.record(
                letter, results.NOT_RUN, here=self.here, reason="an earlier stage stopped"
            )
            results.write_json(results.record_path(self.work, letter), found)
        return found

    def _run_eager(self, letters: Sequence[str]) -> None:
        """Run stages in one engine; after one that broke it, go on with a new engine."""
        waiting = list(letters)
        for _ in range(_MOST_STARTS):
            if not waiting:
                break
            ended = self._run_engines(self._engines(waiting))
            failed_to_start = all(how.stage == START for how in ended)
            for how in ended:
                self._account(how)
            if failed_to_start and any(how.code or how.late for how in ended):
                self.say(f"the engine did not start: see {self.work}")
                break
            waiting = [letter for letter in waiting if self._is_open(letter)]
        self._warm.set()
        self._finish_judge()
        for letter in letters:
            taken = {"e": READY, "h": "fault-*.json"}.get(letter)
            if taken and any(self.work.glob(taken)):
                compose(self.work, letter, self.here, self.options.only)
            self._tell(letter)

    def _is_open(self, letter: str) -> bool:
        """Whether a stage still has something to run."""
        found = results.read_json(results.record_path(self.work, letter))
        if letter == "h":
            ended = (found or {}).get("verdict") in (results.DIED, results.LATE)
            return not ended and bool(left(self.work, self.options.only, self.sources))
        return found is None

    def _run_engines(self, waiting: list[Starter]) -> list[Ended]:
        """Start the first; the others once it has started: with cold caches, each would compile alike."""
        processes = [waiting.pop(0)()]

        def each_round() -> None:
            self._begin_judge()
            if processes[0].doing()["stage"] != START:
                self._warm.set()
                processes.extend(start() for start in waiting)
                waiting.clear()

        return wait_all(processes, each_round)

    def _engines(self, waiting: Sequence[str]) -> list[Starter]:
        """Give one engine for all stages, and beside it one for each fault that may end its engine.

        Once a fault has ended the engine that it shared with others, each has its own.
        """
        faults = left(self.work, self.options.only, self.sources) if "h" in waiting else []
        alone = [each.name for each in faults if each.may_stop or self._apart]
        engines = list[Starter]()
        if list(waiting) != ["h"] or len(alone) < len(faults):
            engines.append(partial(self._worker, "eager", list(waiting)))
        room = max(self.options.together, 1) - len(engines)
        alone = alone[: max(room, 0 if engines else 1)]
        engines += [partial(self._worker, "eager", ["h"], ("--faults", name)) for name in alone]
        return engines

    def _run_graphs(self) -> None:
        """Run stage g, after an engine of the other stages has started where they run beside it."""
        while not self._warm.wait(0.2):
            check_stop()
        for worker in ("graphs", "overlapped"):
            how = wait_all([self._worker(worker, ["g"])])[0]
            self._account(how)
            if how.code or how.late:
                break
        compose(self.work, "g", self.here)
        self._tell("g")

    def _worker(
        self, worker: str, letters: Sequence[str], more: Sequence[str] = ()
    ) -> WorkerProcess:
        name = "-".join([worker, *more[1:]])
        self.say(f"starting an engine ({worker}) for {', '.join(letters)}")
        arguments = ["--worker", worker, "--letters", "".join(letters), "--name", name, *more]
        return WorkerProcess(
            [*arguments, *self.options.as_arguments()],
            name=name,
            letters="".join(letters),
            work=self.work,
            environment=environment(worker, os.environ),
            limit_of=self._limit,
        )

    def _limit(self, letter: str) -> float:
        seconds = START_S if letter in (START, "close") else stage(letter).limit_s
        return seconds * self.options.limits

    def _account(self, how: Ended) -> None:
        """Write what became of the stage in which a worker died or was late."""
        fault = account(how, self.work, self.here)
        if fault is not None:
            self._apart = self._apart or not fault.may_stop

    def _begin_judge(self) -> None:
        """Compare dumps on the CPU while the GPU goes on."""
        if self._judge is None and (self.work / READY).is_file():
            self._judge = WorkerProcess(
                ["--judge", *self.options.as_arguments()],
                name="judge",
                work=self.work,
                environment={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"},
                limit_of=lambda _: _JUDGE_S * self.options.limits,
            )

    def _finish_judge(self) -> None:
        self._begin_judge()
        if self._judge is not None:
            wait_all([self._judge])

    def _tell(self, letter: str) -> None:
        found = results.read_json(results.record_path(self.work, letter))
        if found is not None:
            self.say(f"{letter} {found['verdict']}  {stage(letter).title}  {found['reason'][:300]}")
