"""One process with one engine: runs stages in order and writes each record as soon as it is there."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dih20.engine_check import results
from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.driver import Driver
from dih20.engine_check.stage_answers import guarded, log_probs_and_answers, long_and_mixed
from dih20.engine_check.stage_faults import switch_each_on
from dih20.engine_check.stage_graphs import eager_and_graphs, overlapped
from dih20.engine_check.stage_load import weights_are_the_checkpoints
from dih20.engine_check.stage_parity import dump_every_site

Run = Callable[[Driver, Context], Outcome]
RUNS: dict[str, dict[str, Run]] = {
    "eager": {
        "b": weights_are_the_checkpoints,
        "c": log_probs_and_answers,
        "d": long_and_mixed,
        "e": dump_every_site,
        "f": guarded,
        "h": switch_each_on,
    },
    "graphs": {"g": eager_and_graphs},
    "overlapped": {"g": overlapped},
}
START, CLOSE = "start", "close"
BROKE_OFF = 3  # exit code: a stage raised; its record says why, and the rest need a new process


def now_path(work: Path, name: str) -> Path:
    """Give the file that says what a worker does now; name: of the worker's process."""
    return work / f"now-{name}.json"


def mark(work: Path, name: str, stage: str, part: str = "") -> None:
    results.write_json(now_path(work, name), {"stage": stage, "part": part, "since": time.time()})


def run_stages(
    make_driver: Callable[[], Driver],
    letters: Sequence[str],
    worker: str,
    context: Context,
    here: dict[str, Any],
    name: str = "",
) -> int:
    """Start an engine and run the stages; give the exit code. A later fault loses no record."""
    name = name or worker
    mark(context.work, name, START)
    driver = make_driver()
    before = _since(driver, {})[1]
    for letter in letters:
        mark(context.work, name, letter)
        begun = time.monotonic()
        context = _marking(context, name, letter)
        try:
            with torch.inference_mode():  # as the engine's weights and caches were made
                outcome = RUNS[worker][letter](driver, context)
        except Exception:  # noqa: BLE001 - whatever an engine raises belongs into the stage's record
            traceback.print_exc()
            reason = traceback.format_exc(limit=-6)[-3000:]
            _write(context, letter, here, Outcome(numbers={}, reasons=(reason,)), begun)
            return BROKE_OFF
        counts, before = _since(driver, before)
        outcome = replace(outcome, numbers={**outcome.numbers, "run": counts})
        _write(context, letter, here, outcome, begun)
    mark(context.work, name, CLOSE)
    driver.close()
    return 0


def _since(driver: Driver, before: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Give what the driver has counted since `before`, and all of it."""
    now = dict(getattr(driver, "counts", {}))
    return {name: round(value - before.get(name, 0), 2) for name, value in now.items()}, now


def _marking(context: Context, name: str, letter: str) -> Context:
    return replace(context, begin=lambda part: mark(context.work, name, letter, part))


def _write(
    context: Context, letter: str, here: dict[str, Any], outcome: Outcome, begun: float
) -> None:
    if letter == "h":
        return  # several processes have parts of it: the parent writes the record
    verdict = results.PASSED if outcome.passed else results.FAILED
    if outcome.pending and outcome.passed:
        verdict = results.NOT_RUN  # until the parent has judged what was taken
    results.write_json(
        results.record_path(context.work, letter),
        results.record(
            letter,
            verdict,
            here=here,
            numbers=outcome.numbers,
            reason="; ".join(outcome.reasons),
            seconds=time.monotonic() - begun,
        ),
    )
