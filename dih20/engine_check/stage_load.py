"""Stage b: the engine has started, and holds the checkpoint's weights."""

from __future__ import annotations

from typing import Any

from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.driver import Driver
from dih20.engine_check.loaded_weights import compare_held, held_tensors
from v41.checkpoint import CheckpointReader, load_weights

LARGEST = 1e-5  # of a tensor's largest value: requantising moves values below 2^-6 of a scale by 2^-10 of it
_NAMED = 12


def weights_are_the_checkpoints(driver: Driver, context: Context) -> Outcome:
    """Compare every tensor; one that is not where it should be is named, and the rest go on."""
    reader = CheckpointReader(context.checkpoint)
    weights = load_weights(reader, "sm90")
    found: dict[str, Any] = {}
    missing: list[str] = []
    for held in held_tensors(reader.config):
        try:
            found[held.at] = compare_held(driver.model, held, weights)
        except (AttributeError, KeyError, AssertionError, RuntimeError) as fault:
            missing.append(f"{held.at}: {type(fault).__name__}: {fault}")
    differing = {at: each for at, each in found.items() if not each["largest"] <= LARGEST}
    numbers = {
        "tensors": len(found),
        "elements": sum(each["elements"] for each in found.values()),
        "exact": sum(each["differ"] == 0 for each in found.values()),
        "differ": dict(list(differing.items())[:_NAMED]),
        "largest": max((each["largest"] for each in found.values()), default=None),
        "not_found": missing[:_NAMED],
    }
    wrong = (
        [f"{len(missing)} tensors are not where they should be, the first: {missing[0]}"]
        if missing
        else []
    )
    if differing:
        at, each = next(iter(differing.items()))
        wrong.append(
            f"{len(differing)} tensors hold other values, the first {at}: {each['differ']} of "
            f"{each['elements']} differ, by up to {each['largest']:.1e} of the largest value"
        )
    return Outcome(numbers=numbers, reasons=tuple(wrong))
