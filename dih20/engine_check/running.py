"""Run the stages: engines in processes of their own, records kept, stages that passed left out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dih20.engine_check import here as this_machine
from dih20.engine_check import reference, results
from dih20.engine_check.accounting import account
from dih20.engine_check.composing import compose
from dih20.engine_check.eager_rounds import EagerRounds
from dih20.engine_check.judge import JUDGED
from dih20.engine_check.launching import Launcher
from dih20.engine_check.options import Options
from dih20.engine_check.processes import STOP, WorkerProcess, check_stop, wait_all
from dih20.engine_check.stage_faults import HEALTHY
from dih20.engine_check.stage_graphs import EAGER, GRAPHS, OVERLAPPED
from dih20.engine_check.stage_parity import READY
from dih20.engine_check.stages import Stage, chosen, stage

Say = Callable[[str], None]


class Check:
    """One run of the chosen stages."""

    def __init__(self, options: Options, say: Say) -> None:
        self.options, self.say = options, say
        self.work = options.folder
        self.work.mkdir(parents=True, exist_ok=True)
        self.here = this_machine.facts(options.tree_folder)
        results.write_json(self.work / this_machine.HERE, self.here)
        self.sources: dict[str, str] = self.here["sources"]
        self.launcher = Launcher(options, say)
        self._judge: WorkerProcess | None = None
        self._warm = threading.Event()  # an engine has started: kernels are compiled

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
        if not eager:
            self._warm.set()
        self._together(groups)
        return [self._record(each.letter) for each in picked]

    def _together(self, groups: Sequence[Callable[[], object]]) -> None:
        """Run groups beside each other where that was asked for; an interrupt ends all of them."""
        beside = len(groups) if self.options.parallel else 1
        with ThreadPoolExecutor(max_workers=max(beside, 1)) as threads:
            begun = [threads.submit(group) for group in groups]
            try:
                for done in begun:
                    done.result()
            except (KeyboardInterrupt, SystemExit):
                STOP.set()
                raise

    def _is_due(self, each: Stage) -> bool:
        if self.options.again or not results.passed_already(self.work, each.letter, self.sources):
            return True
        self.say(f"{each.letter} passed already with these sources")
        return False

    def _forget(self, letter: str) -> None:
        """Remove what an earlier run left of a stage.

        Results of single faults stay, and dumps that were not compared yet; not with --again.
        """
        if letter == "e" and self._is_dumped():
            (self.work / JUDGED).unlink(missing_ok=True)
            return
        names = {"e": (READY, JUDGED), "g": (EAGER, GRAPHS, OVERLAPPED)}.get(letter, ())
        for path in (results.record_path(self.work, letter), *(self.work / name for name in names)):
            path.unlink(missing_ok=True)
        if letter == "h" and self.options.again:
            for pattern in ("fault-*.json", f"{HEALTHY}-*.json"):
                for path in self.work.glob(pattern):
                    path.unlink()

    def _is_dumped(self) -> bool:
        """Whether a run with these sources made the dumps of stage e, and was cut before their verdict."""
        record = results.read_json(results.record_path(self.work, "e")) or {}
        ready = results.read_json(self.work / READY) or {}
        cut = record.get("verdict") == results.NOT_RUN and record.get("sources") == self.sources
        return cut and ready.get("sources") == self.sources and not self.options.again

    def _record(self, letter: str) -> dict[str, Any]:
        found = results.read_json(results.record_path(self.work, letter))
        if found is None:
            found = results.record(
                letter, results.NOT_RUN, here=self.here, reason="an earlier stage stopped"
            )
            results.write_json(results.record_path(self.work, letter), found)
        return found

    def _run_eager(self, letters: Sequence[str]) -> None:
        """Run stages that share an engine; what there is of them counts, whatever ended the rounds."""

        def each_round() -> None:
            if "e" in letters:
                self._begin_judge()

        try:
            EagerRounds(self.launcher, self.here, self._warm, each_round).run(letters)
        finally:
            self._warm.set()
            for letter in letters:
                if letter == "h" and any(self.work.glob("fault-*.json")):
                    compose(self.work, letter, self.here, self.options.only)
                if letter != "e":
                    self._tell(letter)
            if "e" in letters and not STOP.is_set():
                self._finish_parity()

    def _run_graphs(self) -> None:
        """Run stage g, after an engine of the other stages has started where they run beside it."""
        while not self._warm.wait(0.2):
            check_stop()
        for worker in ("graphs", "overlapped"):
            how = wait_all([self.launcher.engine(worker, ["g"])])[0]
            account(how, self.work, self.here)
            if how.broke:
                break
        compose(self.work, "g", self.here)
        self._tell("g")

    def _begin_judge(self) -> None:
        """Compare dumps on the CPU while the GPU goes on."""
        if self._judge is None and (self.work / READY).is_file():
            self._judge = self.launcher.judge()

    def _finish_parity(self) -> None:
        self._begin_judge()
        if self._judge is not None:
            wait_all([self._judge])
            compose(self.work, "e", self.here)
        self._tell("e")

    def _tell(self, letter: str) -> None:
        found = results.read_json(results.record_path(self.work, letter))
        if found is not None:
            self.say(f"{letter} {found['verdict']}  {stage(letter).title}  {found['reason'][:300]}")
