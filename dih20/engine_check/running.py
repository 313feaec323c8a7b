"""Run the stages: engines in processes of their own, records kept, stages that passed left out."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dih20.engine_check import here as this_machine
from dih20.engine_check import reference, results
from dih20.engine_check.composing import compose
from dih20.engine_check.engine_environment import environment
from dih20.engine_check.hypotheses import HYPOTHESES, Hypothesis
from dih20.engine_check.judge import JUDGED
from dih20.engine_check.options import Options
from dih20.engine_check.processes import Ended, WorkerProcess, wait_all
from dih20.engine_check.stage_faults import SEEN, STOPPED, left, part_path
from dih20.engine_check.stage_graphs import EAGER, GRAPHS, OVERLAPPED
from dih20.engine_check.stage_parity import READY
from dih20.engine_check.stages import START_S, Stage, chosen, stage
from dih20.engine_check.worker import START

Say = Callable[[str], None]
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
            ended = wait_all(self._engines(waiting), self._begin_judge)
            failed_to_start = all(how.stage == START for how in ended)
            for how in ended:
                self._account(how)
            if failed_to_start and any(how.code or how.late for how in ended):
                self.say(f"the engine did not start: see {self.work}")
                break
            waiting = [letter for letter in waiting if self._is_open(letter)]
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

    def _engines(self, waiting: Sequence[str]) -> list[WorkerProcess]:
        """Give one engine for all stages, and beside it one for each fault that may end its engine.

        Once a fault has ended the engine that it shared with others, each has its own.
        """
        faults = left(self.work, self.options.only, self.sources) if "h" in waiting else []
        alone = [each.name for each in faults if each.may_stop or self._apart]
        engines = []
        if list(waiting) != ["h"] or len(alone) < len(faults):
            engines.append(self._worker("eager", waiting))
        room = max(self.options.together, 1) - len(engines)
        alone = alone[: max(room, 0 if engines else 1)]
        return engines + [self._worker("eager", ["h"], ("--faults", name)) for name in alone]

    def _run_graphs(self) -> None:
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
            work=self.work,
            environment=environment(worker, os.environ),
            limit_of=self._limit,
        )

    def _limit(self, letter: str) -> float:
        seconds = START_S if letter in (START, "close") else stage(letter).limit_s
        return seconds * self.options.limits

    def _account(self, how: Ended) -> None:
        """Write what became of the stage in which a worker died or was late."""
        if not (how.code or how.late) or how.stage == "close":
            return
        letter = how.stage
        fault = next((each for each in HYPOTHESES if letter == "h" and each.name == how.part), None)
        if letter == START:
            self._write_start_fault(how)
        elif fault is not None:
            self._apart = self._apart or not fault.may_stop
            self._stopped(fault, how)
        elif results.read_json(results.record_path(self.work, letter)) is None or how.late:
            verdict = results.LATE if how.late else results.DIED
            reason = f"at {how.part or letter}: {_why(how)}"
            record = results.record(letter, verdict, here=self.here, reason=reason)
            results.write_json(results.record_path(self.work, letter), record)

    def _stopped(self, fault: Hypothesis, how: Ended) -> None:
        """A fault that ended its engine: that is its symptom, unless it had its result already."""
        path = part_path(self.work, fault.name)
        if (results.read_json(path) or {}).get("sources") == self.sources:
            return
        result = {
            "id": fault.id,
            "name": fault.name,
            "fault": fault.fault,
            "predicted": fault.predicted,
            "sources": self.sources,
            "verdict": SEEN if fault.may_stop and not how.late else STOPPED,
            "stopped": True,
            "why": _why(how)[-1000:],
        }
        results.write_json(path, result)

    def _write_start_fault(self, how: Ended) -> None:
        letter = next((each.letter for each in chosen(self.options.stage)
                       if not results.record_path(self.work, each.letter).exists()), "b")  # fmt: skip
        verdict = results.LATE if how.late else results.DIED
        record = results.record(
            letter, verdict, here=self.here, reason=f"the engine did not start: {_why(how)}"
        )
        results.write_json(results.record_path(self.work, letter), record)

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


def _why(how: Ended) -> str:
    return f"{'over its time limit' if how.late else f'exit code {how.code}'}; the log ends: {how.tail}"


def ensure_checkpoint(options: Options) -> Path:
    """Give the canary with its vision shard, made now if it is not there."""
    if options.checkpoint:
        return Path(options.checkpoint)
    from v41.canary import FOLDER
    from v41.canary.vision_shard import write_with_vision

    folder = options.folder / "canary"
    if not (folder / "config.json").is_file():
        part = options.folder / f"canary.part-{time.time_ns()}"
        write_with_vision(FOLDER, part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return folder
