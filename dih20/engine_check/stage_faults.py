"""Stage h: each fault switched on in the running engine, one at a time, and off again."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dih20.engine_check.answering import ask_all
from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.driver import Driver
from dih20.engine_check.dumping import dump_case, engine_facts, first_difference
from dih20.engine_check.fault_switches import NoEffect, Places, places_of
from dih20.engine_check.hypotheses import HYPOTHESES, Hypothesis
from dih20.engine_check.judging import forced
from dih20.engine_check.results import read_json, write_json

SEEN, NOT_SEEN, REFUSED, STOPPED, NO_EFFECT = "seen", "not seen", "refused", "stopped", "no effect"
BROKE, NOT_TRIED = "broke off", "not tried"  # no verdict on the fault: the stage does not pass
HEALTHY = "healthy"
_LAST = ("H2", "H6")  # these read memory that is not theirs


class NotHealthyAgain(Exception):
    """After a fault was taken out, the engine does not answer as before: a new one is needed."""


def part_path(work: Path, name: str) -> Path:
    return work / f"fault-{name}.json"


def healthy_parts(work: Path, sources: dict[str, str]) -> list[dict[str, Any]]:
    """Give what each engine showed without a fault, those of these sources."""
    parts = [read_json(path) or {} for path in sorted(work.glob(f"{HEALTHY}-*.json"))]
    return [part for part in parts if part.pop("sources", None) == sources]


def wanted(only: str) -> list[Hypothesis]:
    return [each for each in HYPOTHESES if only in each.name or only in (each.id, each.fault)]


def belongs(hypothesis: Hypothesis, faults: Sequence[str]) -> bool:
    """Whether a process that has these faults tries it; one without any tries what should end no engine."""
    return hypothesis.name in faults if faults else not hypothesis.may_stop


def left(work: Path, only: str, sources: dict[str, str]) -> list[Hypothesis]:
    """Give those without a result for these sources."""
    return [
        each
        for each in wanted(only)
        if (read_json(part_path(work, each.name)) or {}).get("sources") != sources
    ]


def switch_each_on(
    driver: Driver,
    context: Context,
    find: Any = places_of,
    hypotheses: Sequence[Hypothesis] | None = None,
) -> Outcome:
    """Try every fault that has no result yet; each result is written as soon as it is there."""
    options = context.options
    if hypotheses is None:
        hypotheses = left(context.work, options.only, context.sources)
        hypotheses = [each for each in hypotheses if belongs(each, context.faults)]
    trial = Trial(driver, context, find(driver.model))
    context.begin(HEALTHY)
    trial.healthy()
    for hypothesis in sorted(hypotheses, key=lambda each: each.id in _LAST):
        context.begin(hypothesis.name)
        trial.run(hypothesis)
    return Outcome(numbers={}, pending=True)


class Trial:
    """One engine that faults are put into."""

    def __init__(self, driver: Driver, context: Context, places: Places) -> None:
        from dih20.parity.checkpoints import weights_hash
        from v41.checkpoint import CheckpointReader

        self.driver, self.context, self.places = driver, context, places
        reader = CheckpointReader(context.checkpoint)
        self._facts = engine_facts(reader.config, weights_hash(reader))
        self._not_finite = self._rows = 0

    def healthy(self) -> None:
        """Run without a fault: what the others are compared with."""
        shown, _ = self._shown(HEALTHY)
        self._before = shown
        part = {"engine": self._own, **shown, "sources": self.context.sources}
        write_json(self.context.work / f"{HEALTHY}-{self._own}.json", part)

    def run(self, hypothesis: Hypothesis) -> None:
        result: dict[str, Any] = {
            "id": hypothesis.id,
            "name": hypothesis.name,
            "fault": hypothesis.fault,
            "predicted": hypothesis.predicted,
            "sources": self.context.sources,
        }
        try:
            with hypothesis.switch(self.places):
                shown, folder = self._shown(hypothesis.name)
            shown["first_difference"] = first_difference(self._folder(HEALTHY), folder)
            seen = hypothesis.seen(shown)
            result |= shown | {
                "as_predicted": seen,
                "verdict": SEEN if all(seen.values()) else NOT_SEEN,
            }
        except NoEffect as none:
            result |= {"verdict": NO_EFFECT, "why": str(none)}
        except (AssertionError, ValueError, TypeError) as refusal:
            if _raised_by_the_check(refusal):
                raise
            # a guard of the engine or of its operators, before any kernel
            result |= {"verdict": REFUSED, "why": f"{type(refusal).__name__}: {refusal}"[:500]}
        write_json(part_path(self.context.work, hypothesis.name), result)
        if result["verdict"] == REFUSED:
            raise NotHealthyAgain(f"{hypothesis.name} was refused in the middle of a step")
        self.driver.clear_caches()
        again = ask_all(self.driver, self.context.values, self.context.checkpoint)
        if again != {key: self._before[key] for key in again}:
            raise NotHealthyAgain(f"{again} after {hypothesis.name}, before it {self._before}")

    @property
    def _own(self) -> str:
        return "-".join(self.context.faults) or "shared"

    def _folder(self, name: str) -> Path:
        return self.context.work / "faults" / self._own / name

    def _shown(self, name: str) -> tuple[dict[str, Any], Path]:
        """Ask the questions, then dump one case; logits that are not finite count as very small."""
        folder = self._folder(name)
        _, prompt, golden = self.context.values.dumped[0]
        self._not_finite = self._rows = 0
        self.driver.clear_caches()
        with self._going_on():
            answers = ask_all(self.driver, self.context.values, self.context.checkpoint)
            facts = self._facts_looked_up()
            steps = {"steps_not_finite": self._not_finite, "steps": self._rows}
            dump_case(self.driver, folder, self._facts, prompt, golden, statistics_only=True)
        return {**answers, **facts, **steps}, folder

    def _facts_looked_up(self) -> dict[str, int]:
        """Ask for facts of long prompts: the first answer comes of prefill, the second of decode."""
        cases = [case for case in self.context.values.long if len(case.prompt) < 600]
        replies = self.driver.generate([forced(case) for case in cases])
        pairs = list(zip(cases, replies, strict=True))
        return {
            "facts_asked": len(cases),
            "facts_right_in_prefill": sum(r.best[:1] == list(c.golden[:1]) for c, r in pairs),
            "facts_right_in_decode": sum(r.best[-1:] == list(c.golden[-1:]) for c, r in pairs),
        }

    @contextmanager
    def _going_on(self) -> Any:
        import torch

        def change(logits: Any) -> Any:
            self._rows += logits.shape[0]
            self._not_finite += int((~logits.isfinite()).any(dim=-1).sum())
            return torch.nan_to_num(logits, nan=-1e30, posinf=1e30, neginf=-1e30)

        with self.driver.logits_through(change):
            yield


def _raised_by_the_check(fault: BaseException) -> bool:
    """Whether the innermost frame of an exception is a line of this package."""
    frames = traceback.extract_tb(fault.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent == Path(__file__).parent
