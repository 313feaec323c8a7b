"""Stages c, d and f: log-probs and answers, long prompts and mixed batches, the sync guard."""

from __future__ import annotations

from typing import Any

from dih20.engine_check.answering import ask_all
from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.driver import Driver
from dih20.engine_check.judging import compare, forced
from dih20.engine_check.prompt_rows import of_prompts
from dih20.engine_check.reach_watch import Reached, ReachWatch
from v41.checkpoint import CheckpointReader


def log_probs_and_answers(driver: Driver, context: Context) -> Outcome:
    """Stage c: teacher-forced log-probs of every right answer, then the answers themselves."""
    cases = context.values.questions
    context.begin("log-probs")
    numbers, wrong = compare(cases, driver.generate([forced(case) for case in cases]))
    context.begin("answers")
    answers = ask_all(driver, context.values, context.checkpoint)
    right, asked = answers["answers_right"], answers["answers_asked"]
    if right != asked:
        wrong.append(f"{right} of {asked} answers are right; first wrong: {answers['wrong'][0]}")
    return Outcome(numbers={"log_probs": numbers, **answers}, reasons=tuple(wrong))


def long_and_mixed(driver: Driver, context: Context) -> Outcome:
    """Stage d: each long prompt alone, then prompts of mixed lengths together, twice.

    Alone, what attention may read is compared exactly as well.
    """
    wrong: list[str] = []
    numbers: dict[str, Any] = {}
    long, mixed = context.values.long, context.values.mixed
    config = CheckpointReader(context.checkpoint).config
    replies, reach = [], Reached()
    for case in long:
        context.begin(case.name)
        with ReachWatch(driver.model, config, driver.skip_step) as watch:
            replies += driver.generate([forced(case, prompt_logprobs=True)])
        reach.take(case, watch)
    numbers["reach"], reasons = reach.judged()
    wrong += reasons
    numbers["alone"], reasons = compare(long, replies)
    wrong += [f"alone: {reason}" for reason in reasons]
    numbers["of_prompts"], reasons = of_prompts(long, replies)
    wrong += [f"prompts: {reason}" for reason in reasons]
    together = {"together": mixed, "all_together": (*long[-2:], *mixed)}
    for name, cases in together.items():
        context.begin(name)
        numbers[name], reasons = compare(cases, driver.generate([forced(case) for case in cases]))
        wrong += [f"{name}: {reason}" for reason in reasons]
    return Outcome(numbers=numbers, reasons=tuple(wrong))


def guarded(driver: Driver, context: Context) -> Outcome:
    """Stage f: questions and a long prompt under the engine's guard, nothing dumped."""
    cases = (*context.values.questions[:4], context.values.long[-1])
    with driver.sync_guard():
        replies = driver.generate([forced(case) for case in cases])
    numbers, wrong = compare(cases, replies)
    return Outcome(numbers=numbers, reasons=tuple(wrong))
