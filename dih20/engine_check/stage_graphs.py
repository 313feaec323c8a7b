"""Stage g: captured graphs, and overlapped scheduling in an engine of its own, against eager."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.driver import GREEDY, Ask, Driver, Reply, StepRow
from dih20.engine_check.results import write_json

EAGER, GRAPHS, OVERLAPPED = "g-eager.json", "g-graphs.json", "g-overlapped.json"
SIZES = (4, 1, 2, 3)  # of batches; with graphs for 1, 2 and 4, three rows run with one of padding
_PADDED = (3,)
STEPS = 12


def eager_and_graphs(driver: Driver, context: Context) -> Outcome:
    """Run the same batches eager and through graphs, and compare after every step."""
    context.begin("eager")
    with driver.eager():
        eager = run_batches(driver, context)
    write_json(context.work / EAGER, eager)
    context.begin("graphs")
    return _judged(context.work / GRAPHS, eager, run_batches(driver, context), overlaps=False)


def overlapped(driver: Driver, context: Context) -> Outcome:
    """Run them in an engine with overlapped scheduling, against what eager left in its file."""
    from dih20.engine_check.results import read_json

    eager = read_json(context.work / EAGER)
    assert eager is not None, "the eager run comes first"
    context.begin("overlapped")
    return _judged(context.work / OVERLAPPED, eager, run_batches(driver, context), overlaps=True)


def _judged(path: Path, eager: dict[str, Any], other: dict[str, Any], *, overlaps: bool) -> Outcome:
    numbers, reasons = compare_runs(eager, other)
    for size, after in other.items():
        numbers[size] |= {
            "replays": after["replays"],
            "replays_eager": eager[size]["replays"],
            "overlaps": after["overlaps"],
        }
    reasons += ran_otherwise(eager, other, overlaps=overlaps)
    write_json(path, {"numbers": numbers, "reasons": reasons})
    return Outcome(numbers=numbers, reasons=tuple(reasons), pending=True)


def run_batches(driver: Driver, context: Context) -> dict[str, Any]:
    """Give, for each batch size, tokens and hashes of logits and caches after every decode step."""
    cases = [*context.values.mixed, *context.values.long]
    found = {}
    for size in SIZES:
        asks = [
            Ask(prompt=case.prompt, max_tokens=STEPS, temperature=GREEDY, past_end=True)
            for case in cases[:size]
        ]
        driver.clear_caches()
        before = driver.graph_replays()
        with driver.step_rows() as rows:
            replies = driver.generate(asks)
        ran = {"replays": driver.graph_replays() - before, "overlaps": driver.overlaps()}
        found[str(size)] = _hashed(replies, rows) | ran
    return found


def _hashed(replies: Sequence[Reply], rows: Sequence[StepRow]) -> dict[str, Any]:
    steps = {
        f"{row.request}/{row.step}": {
            "logits": hashlib.sha256(row.logits.float().numpy().tobytes()).hexdigest()[:32],
            "largest": float(row.logits.float().max()),
            "cache": row.cache[:32],
        }
        for row in rows
    }
    return {"tokens": [reply.tokens for reply in replies], "steps": steps}


def ran_otherwise(eager: dict[str, Any], other: dict[str, Any], *, overlaps: bool) -> list[str]:
    """Say where the engine did not run as it was told: it falls back to eager without a word."""
    wrong = []
    for size, after in other.items():
        if replays := eager[size]["replays"]:
            wrong.append(f"batch of {size}: {replays} graphs were replayed where it ran eager")
        steps = max((int(key.partition("/")[2]) + 1 for key in after["steps"]), default=1)
        if after["replays"] < steps:
            wrong.append(f"batch of {size}: {after['replays']} graphs replayed in {steps} steps")
        if after["overlaps"] != overlaps:
            now, wanted = ("on" if each else "off" for each in (after["overlaps"], overlaps))
            wrong.append(f"batch of {size}: overlapped scheduling is {now}, expected {wanted}")
    return wrong


def compare_runs(eager: dict[str, Any], other: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Every step that eager has must be there, and equal; with padding, logits may differ a little.

    Rows of a padded batch go through the same kernels beside other rows: their caches are compared
    as well, but a difference is only counted.
    """
    numbers: dict[str, Any] = {}
    wrong: list[str] = []
    for size, before in eager.items():
        after = other.get(size, {"tokens": None, "steps": {}})
        row = _counts(before["steps"], after["steps"])
        row["tokens_equal"] = before["tokens"] == after["tokens"]
        numbers[size] = row
        if not row["tokens_equal"]:
            wrong.append(f"batch of {size}: other tokens")
        if row["missing"] or not row["steps"]:
            wrong.append(f"batch of {size}: {row['missing']} of {row['steps']} steps are missing")
        if int(size) not in _PADDED and (row["logits_differ"] or row["caches_differ"]):
            wrong.append(
                f"batch of {size}: logits differ in {row['logits_differ']} and caches in "
                f"{row['caches_differ']} of {row['steps']} steps, first {row['first']}"
            )
    return numbers, wrong


def _counts(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "steps": len(before), "missing": 0, "logits_differ": 0, "caches_differ": 0, "first": "",
        "largest_logit_difference": 0.0,
    }  # fmt: skip
    for key, one in before.items():
        two = after.get(key)
        if two is None:
            row["missing"] += 1
            continue
        logits, cache = one["logits"] != two["logits"], one["cache"] != two["cache"]
        row["logits_differ"] += logits
        row["caches_differ"] += cache
        gap = abs(one["largest"] - two["largest"])
        row["largest_logit_difference"] = max(row["largest_logit_difference"], gap)
        if (logits or cache) and not row["first"]:
            row["first"] = f"request/step {key}: {'logits' if logits else 'cache'}"
    return row
