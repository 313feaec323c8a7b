"""Errors of a site's own that rounding makes in a sound engine, and those that it does not.

Index vectors are FP4: a number close to halfway falls on either side, and moves by a whole step.
Scores are bf16 sums: a selection may take one entry for another whose score is as good within that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dih20.parity.compare.verdict import accusation
from dih20.parity.model import Comparison, Finding, Measure

MOST_ROWS = (
    0.02  # of a site's rows over a case: selections in prefill that rounding does not explain
)
MOST_CODES = 0.02  # of a site's values over a case
_FP4 = "fp4_32_ue8m0"
# Of a site's values over a case, as stored in the pages: a bf16 number that rounds the other way, one
# in some thousands, seldom reaches another code; 0 of 565,760 with upstream's host code on a CPU.
MOST_ENTRIES = 0.001
_ENTRIES = ".compressed_kv"
_OWN = ("fresh", "rounding")

Key = tuple[int, str]


def weigh(
    comparison: Comparison, shapes: Mapping[Key, tuple[int, ...]]
) -> tuple[dict[str, Any], list[str]]:
    """Give, per site, what rounding makes of it, and what is wrong.

    shapes: of every compared tensor, by step and site: shares are over a whole case.
    """
    of_site: dict[str, list[Finding]] = defaultdict(list)
    for finding in comparison.findings:
        is_entry = finding.site.endswith(_ENTRIES)
        if finding.fresh is not None and (finding.origin in _OWN or is_entry):
            of_site[finding.site].append(finding)
    rounded: dict[str, Any] = {}
    wrong = [each for each in comparison.findings if each.diverges and each.origin == "unknown"]
    for site, findings in of_site.items():
        sizes = [shape for (_, name), shape in shapes.items() if name == site]
        judge = _JUDGES.get(findings[0].kind, _no_rounding)
        found, fault = (_entries if site.endswith(_ENTRIES) else judge)(findings, sizes)
        rounded |= {site: found} if found else {}
        wrong += [fault] if fault is not None else []
    return rounded, [_line(comparison, wrong)] if wrong else []


def _line(comparison: Comparison, wrong: Sequence[Finding]) -> str:
    first = min(wrong, key=comparison.findings.index)
    if first == comparison.verdict.first:
        return comparison.verdict.line
    return accusation(first, ())


Judged = tuple[dict[str, Any], Finding | None]


def _no_rounding(findings: Sequence[Finding], shapes: Sequence[tuple[int, ...]]) -> Judged:
    return {}, findings[0]


def _selections(findings: Sequence[Finding], shapes: Sequence[tuple[int, ...]]) -> Judged:
    """In decode every selection must be explained; a prefill's rows may have a few that are not."""
    rows = sum(_product(shape[:-1]) for shape in shapes)
    beyond = [each for each in findings if _number(each, "rows_beyond_rounding")]
    count = sum(_number(each, "rows_beyond_rounding") for each in beyond)
    few = count <= MOST_ROWS * rows
    wrong = [
        each
        for each in findings
        if _number(each, "rows_impossible")
        or (each in beyond and (each.phase == "decode" or not few))
    ]
    found = {
        "rows": rows,
        "differ": sum(_number(each, "rows_differ") for each in findings),
        "beyond_rounding": count,
        "impossible": sum(_number(each, "rows_impossible") for each in findings),
    }
    return found, wrong[0] if wrong else None


def _quantised(findings: Sequence[Finding], shapes: Sequence[tuple[int, ...]]) -> Judged:
    """A few FP4 values may be their neighbours."""
    if any(_measure(each).details.get("format") != _FP4 for each in findings):
        return {}, findings[0]
    values = sum(_product(shape) for shape in shapes)
    far = [each for each in findings if _number(each, "values_beyond_one_step")]
    differ = sum(_number(each, "elements_differ") for each in findings)
    found = {
        "values": values,
        "differ": differ,
        "beyond_one_step": sum(_number(each, "values_beyond_one_step") for each in far),
    }
    if far:
        return found, far[0]
    return found, findings[0] if differ > MOST_CODES * values else None


def _entries(findings: Sequence[Finding], shapes: Sequence[tuple[int, ...]]) -> Judged:
    """All steps are counted, also those whose error is small: so many codes are a rule of their own."""
    values = sum(_product(shape) for shape in shapes)
    counts = [_number(each, "elements_differ") if _measure(each).value else 0 for each in findings]
    found = {"values": values, "differ": sum(counts)}
    fresh = [each for each in findings if each.origin == "fresh"]
    if fresh:
        return found, fresh[0]
    worst = findings[counts.index(max(counts))]
    return found, worst if sum(counts) > MOST_ENTRIES * values else None


def _codes(findings: Sequence[Finding], shapes: Sequence[tuple[int, ...]]) -> Judged:
    """A site's FP8 codes inside may be their neighbours, where that alone explains its tensor."""
    fresh = [each for each in findings if each.origin == "fresh"]
    moved = [each for each in findings if each.origin == "rounding"]
    counts = {
        name: sum(_number(each, name) for each in moved)
        for name in ("codes", "codes_near_a_tie", "codes_moved")
    }
    found = {"tensors": len(moved), **counts} if moved else {}
    return found, fresh[0] if fresh else None


_JUDGES = {"selection": _selections, "quantised": _quantised, "dense": _codes}


def _measure(finding: Finding) -> Measure:
    assert finding.fresh is not None, finding
    return finding.fresh


def _number(finding: Finding, name: str) -> int:
    """Give one of the measure's counts; what was not counted cannot be explained."""
    return int(_measure(finding).details.get(name, 1))


def _product(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
