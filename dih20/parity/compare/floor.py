"""The noise floor: how far a run is from itself, repeated."""

from __future__ import annotations

import torch

from dih20.errors import DumpUnusable
from dih20.parity.dump import DumpReader, Key
from dih20.parity.oracle import Oracle
from dih20.parity.statistics import describe, estimate_difference

Floors = dict[Key, float]


def floor_of_repeat(a: DumpReader, repeat: DumpReader) -> Floors:
    """Give the difference of every site between a run and its repetition, from statistics."""
    same = (a.facts.tokens, a.facts.weights) == (repeat.facts.tokens, repeat.facts.weights)
    if not same or a.folder.resolve() == repeat.folder.resolve():
        raise DumpUnusable(
            found=f"{repeat.folder} is not a repetition of {a.folder}",
            expected="another dump of the same tokens with the same weights",
            remedy="dump A's run once more into its own folder and give that",
        )
    return {
        key: _distance(a.describe(*key), repeat.describe(*key)) for key in a.keys if key in repeat
    }


def floor_of_rerun(a: DumpReader, oracle: Oracle) -> Floors:
    """The same for a run of the reference, which is repeated here and now."""
    floors: Floors = {}

    def seen(step: int, site: str, tensor: torch.Tensor) -> None:
        if (step, site) in a:
            floors[step, site] = _distance(a.describe(step, site), describe(tensor))

    oracle.run(a, seen, forced=False)
    return floors


def _distance(a: tuple[object, torch.Tensor], b: tuple[object, torch.Tensor]) -> float:
    return estimate_difference(a[1], b[1])
