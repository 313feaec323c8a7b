"""Records of the stages that several processes have parts of: e (judged apart), h and g."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dih20.engine_check import results
from dih20.engine_check.judge import JUDGED
from dih20.engine_check.stage_faults import BROKE, NOT_TRIED, healthy_parts, part_path, wanted
from dih20.engine_check.stage_graphs import GRAPHS, OVERLAPPED

Here = dict[str, Any]
Parts = tuple[dict[str, Any], list[str], bool]


def compose(work: Path, letter: str, here: Here, only: str = "") -> dict[str, Any]:
    """Write a stage's record from its parts, and give it."""
    numbers, reasons, lacks = {"e": _parity, "g": _graphs, "h": _faults}[letter](work, here, only)
    taken = results.read_json(results.record_path(work, letter)) or {}
    verdict = results.FAILED if reasons else results.PASSED
    if only and not reasons:
        verdict, reasons = results.NOT_RUN, [f"only faults with {only!r} in their names were tried"]
    told = (results.DIED, results.LATE, *((results.FAILED,) if lacks else ()))
    if taken.get("verdict") in told and taken.get("sources") == here["sources"]:
        verdict, reasons = taken["verdict"], [str(taken.get("reason")), *reasons]
    record = results.record(
        letter,
        verdict,
        here=here,
        numbers=numbers,
        reason="; ".join(reasons),
        seconds=float(taken.get("seconds", 0.0)),
    )
    results.write_json(results.record_path(work, letter), record)
    return record


def _parity(work: Path, here: Here, only: str) -> Parts:
    judged = results.read_json(work / JUDGED)
    if judged is None:
        return {}, ["the dumps were not compared: see log-judge.txt in the work folder"], True
    judged["numbers"].pop("sources", None)
    return judged["numbers"], list(judged["reasons"]), False


def _graphs(work: Path, here: Here, only: str) -> Parts:
    numbers: dict[str, Any] = {}
    reasons: list[str] = []
    lacks = False
    for name, file in (("graphs", GRAPHS), ("overlapped", OVERLAPPED)):
        part = results.read_json(work / file)
        if part is None:
            lacks = True
            reasons.append(f"{name}: did not run to its end; see log-{name}.txt in the work folder")
            continue
        numbers[name] = part["numbers"]
        reasons += [f"{name}: {reason}" for reason in part["reasons"]]
    return numbers, reasons, lacks


def _faults(work: Path, here: Here, only: str) -> Parts:
    found: list[dict[str, Any]] = []
    reasons: list[str] = []
    missing = []
    for hypothesis in wanted(only):
        part = results.read_json(part_path(work, hypothesis.name)) or {}
        if part.pop("sources", None) == here["sources"]:
            found.append(part)
            if part["verdict"] == BROKE:
                reasons.append(f"{hypothesis.name} ended by a fault of the check: {part['why']}")
            continue
        missing.append(hypothesis.name)
        if part.get("verdict") == NOT_TRIED:
            reasons.append(f"{hypothesis.name} was not tried: {part['why']}")
    if missing:
        reasons.insert(0, f"no result for {', '.join(missing)}")
    healthy = healthy_parts(work, here["sources"])
    if not healthy or any(each["answers_right"] != each["answers_asked"] for each in healthy):
        reasons.append("an engine without a fault does not answer right")
    return {"healthy": healthy, "hypotheses": found}, reasons, bool(missing)
