"""Records of the stages that several processes have parts of: e (judged apart), h and g."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dih20.engine_check import results
from dih20.engine_check.judge import JUDGED
from dih20.engine_check.stage_faults import HEALTHY, part_path, wanted
from dih20.engine_check.stage_graphs import GRAPHS, OVERLAPPED

Here = dict[str, Any]


def compose(work: Path, letter: str, here: Here, only: str = "") -> dict[str, Any]:
    """Write a stage's record from its parts, and give it."""
    numbers, reasons = {"e": _parity, "g": _graphs, "h": _faults}[letter](work, here, only)
    taken = results.read_json(results.record_path(work, letter)) or {}
    verdict = results.FAILED if reasons else results.PASSED
    if (
        taken.get("verdict") in (results.DIED, results.LATE)
        and taken.get("sources") == here["sources"]
    ):
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


def _parity(work: Path, here: Here, only: str) -> tuple[dict[str, Any], list[str]]:
    judged = results.read_json(work / JUDGED)
    if judged is None:
        return {}, ["the dumps were not compared: see log-judge.txt in the work folder"]
    return judged["numbers"], list(judged["reasons"])


def _graphs(work: Path, here: Here, only: str) -> tuple[dict[str, Any], list[str]]:
    numbers: dict[str, Any] = {}
    reasons: list[str] = []
    for name, file in (("graphs", GRAPHS), ("overlapped", OVERLAPPED)):
        part = results.read_json(work / file)
        if part is None:
            reasons.append(f"{name}: did not run to its end; see log-{name}.txt in the work folder")
            continue
        numbers[name] = part["numbers"]
        reasons += [f"{name}: {reason}" for reason in part["reasons"]]
    return numbers, reasons


def _faults(work: Path, here: Here, only: str) -> tuple[dict[str, Any], list[str]]:
    found, missing = [], []
    for hypothesis in wanted(only):
        part = results.read_json(part_path(work, hypothesis.name)) or {}
        if part.pop("sources", None) == here["sources"]:
            found.append(part)
        else:
            missing.append(hypothesis.name)
    healthy = results.read_json(part_path(work, HEALTHY)) or {}
    healthy.pop("sources", None)
    reasons = [f"no result for {', '.join(missing)}"] if missing else []
    if healthy.get("answers_right") != healthy.get("answers_asked") or not healthy:
        reasons.append("the engine without a fault does not answer right")
    return {"healthy": healthy, "hypotheses": found}, reasons
