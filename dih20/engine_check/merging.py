"""Put the records of all stages together as evidence, if they are of one set of sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dih20.engine_check import results
from dih20.engine_check.completeness import refuse_incomplete
from dih20.engine_check.stages import LETTERS, stage
from dih20.errors import TestsFailed, UsageError
from dih20.paths import REPOSITORY, shown

EVIDENCE = REPOSITORY / "docs/evidence/engine-check-h200.json"
_ONE = ("card", "commit", "versions")


def merge_records(work: Path, say: Callable[[str], None], path: Path = EVIDENCE) -> dict[str, Any]:
    """Write the evidence and give it; a stage that did not pass is in it, and is an error in the end.

    Raises UsageError, and writes nothing, when a record is missing, incomplete or of other sources.
    """
    records = {letter: results.read_json(results.record_path(work, letter)) for letter in LETTERS}
    missing = [letter for letter, found in records.items() if found is None]
    if missing:
        raise UsageError(
            found=f"no record of stage {', '.join(missing)} in {work}",
            expected=f"stages {LETTERS[0]} to {LETTERS[-1]}, of one set of sources",
            remedy=f"run `python -m dih20.engine_check --stage {','.join(missing)} --work {work}` on the GPU",
        )
    whole: dict[str, dict[str, Any]] = {letter: found or {} for letter, found in records.items()}
    _refuse_others(whole)
    refuse_incomplete(whole)
    evidence = _evidence(whole)
    results.write_json(path, evidence)
    say(f"wrote {shown(path)}")
    failed = [letter for letter, found in whole.items() if found["verdict"] != results.PASSED]
    if failed:
        raise TestsFailed(
            found=f"stages {', '.join(failed)} did not pass; {shown(path)} says so",
            expected="every stage passed",
            remedy="mend what their records name, and run them again",
        )
    return {"evidence": shown(path), "answers_right": evidence["answers_right"]}


def _refuse_others(whole: dict[str, dict[str, Any]]) -> None:
    first = next(iter(whole))
    for letter, found in whole.items():
        for key in ("sources", *_ONE):
            if found.get(key) == whole[first].get(key):
                continue
            mine, other = found.get(key), whole[first].get(key)
            parts = (
                [name for name in mine if mine.get(name) != other.get(name)]
                if isinstance(mine, dict) and isinstance(other, dict)
                else [key]
            )
            raise UsageError(
                found=f"stages {first} and {letter} differ in {key}: {', '.join(parts)}",
                expected="records of one set of sources, on one machine",
                remedy=f"run stage {letter}, or {first}, again",
            )


def _evidence(whole: dict[str, dict[str, Any]]) -> dict[str, Any]:
    answers, parity, faults = (whole[letter]["numbers"] for letter in "ceh")
    first = whole["c"]
    return {
        "what": "the patched engine on one GPU, with the canary: inv engine-check",
        **{key: first[key] for key in _ONE},
        "torch_2_13_on_gpu": "run"
        if first["versions"]["found"].get("torch", "").startswith("2.13")
        else "not run",
        "sources": first["sources"],
        **({"bundle": first["bundle"]} if "bundle" in first else {}),
        "passed": all(found["verdict"] == results.PASSED for found in whole.values()),
        "answers_right": answers.get("answers_right"),
        "answers_asked": answers.get("answers_asked"),
        "log_prob_mean_difference": answers.get("log_probs", {}).get("mean_difference"),
        "sites": {name: case.get("sites") for name, case in parity.get("cases", {}).items()},
        "hypotheses": faults.get("hypotheses"),
        "stages": {
            letter: {
                "title": stage(letter).title,
                **{key: found[key] for key in ("verdict", "reason", "seconds", "at")},
                "numbers": _short(letter, found["numbers"]),
            }
            for letter, found in whole.items()
        },
    }


def _short(letter: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """Leave out what stands above."""
    if letter == "e":
        cases = {
            name: {key: value for key, value in case.items() if key != "sites"}
            for name, case in numbers.get("cases", {}).items()
        }
        return {**numbers, "cases": cases}
    return {key: value for key, value in numbers.items() if key != "hypotheses"}
