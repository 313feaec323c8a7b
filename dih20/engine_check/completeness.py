"""What evidence must have: a record that passed without it shows nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dih20.engine_check.hypotheses import HYPOTHESES
from dih20.engine_check.results import PASSED
from dih20.errors import UsageError

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def refuse_incomplete(whole: dict[str, dict[str, Any]]) -> None:
    """Raise UsageError when records, all of one machine and one set of sources, lack what they show."""
    lacks = [*_of_the_run(next(iter(whole.values()))), *_of_stages(whole)]
    if not lacks:
        return
    raise UsageError(
        found=f"records that are incomplete: {'; '.join(lacks)}",
        expected="a card, a commit without changes, hashes of all sources, and every number of a stage that passed",
        remedy="run the stages on the GPU, from a commit or a bundle of one, without --only",
    )


def _of_the_run(first: dict[str, Any]) -> Iterator[str]:
    card, commit = str(first.get("card")), str(first.get("commit"))
    if card in ("none", "None", ""):
        yield "no card"
    if not _COMMIT.fullmatch(commit):
        yield f"commit {commit}"
    sources = first.get("sources") or {}
    missing = [name for name, digest in sources.items() if digest == "missing"]
    if missing or not sources:
        yield f"sources {', '.join(missing) or 'of nothing'} are missing"


def _of_stages(whole: dict[str, dict[str, Any]]) -> Iterator[str]:
    for letter, lacks in _LACKS.items():
        if whole[letter]["verdict"] == PASSED:
            for lack in lacks(whole[letter]["numbers"]):
                yield f"stage {letter} passed with {lack}"


def _answers(numbers: dict[str, Any]) -> Iterator[str]:
    right, asked = numbers.get("answers_right"), numbers.get("answers_asked")
    if not isinstance(right, int) or not isinstance(asked, int) or asked <= 0:
        yield f"{right} of {asked} answers right"
    if not isinstance(numbers.get("log_probs", {}).get("mean_difference"), float):
        yield "no difference of log-probs"


def _prompts(numbers: dict[str, Any]) -> Iterator[str]:
    if not isinstance(numbers.get("of_prompts", {}).get("median_difference"), float):
        yield "no difference of prompts' log-probs"
    reach = numbers.get("reach", {})
    if not (reach.get("rows") and reach.get("steps")):
        yield "no row and step of what attention may read"


def _sites(numbers: dict[str, Any]) -> Iterator[str]:
    cases = numbers.get("cases") or {}
    without = [name for name, case in cases.items() if not case.get("sites")]
    if without or not cases:
        yield f"no sites in {', '.join(without) or 'any case'}"


def _faults(numbers: dict[str, Any]) -> Iterator[str]:
    found = [each.get("name") for each in numbers.get("hypotheses") or []]
    wanted = [each.name for each in HYPOTHESES]
    if sorted(map(str, found)) != sorted(wanted):
        yield f"{len(found)} of {len(wanted)} faults"


_LACKS = {"c": _answers, "d": _prompts, "e": _sites, "h": _faults}
