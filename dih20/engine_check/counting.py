"""Counts for each of upstream's test files, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dih20.engine_check.pytest_lines import KNOWN

KNOWN_RELATIVE = 2.0**-7  # one step of bf16: what the known cases may differ by

_WHOLE = (0, 1)  # pytest's exit codes when all tests ran


def counted(lines: Sequence[Mapping[str, Any]], name: str, code: int, cut: bool) -> dict[str, Any]:
    """Give a file's counts from the lines that the tests of its process wrote."""
    row: dict[str, Any] = {
        "passed": 0, "failed": 0, "skipped": 0, "known": 0, "cut": cut, "exit_code": code,
        "seconds": 0.0, "failures": [],
        "known_cases": [],
    }  # fmt: skip
    for line in lines:
        if "collected" in line:
            row["collected"] = line["collected"].get(name, 0)
            row["left_out"] = line["left_out"].get(name, 0)
            continue
        if Path(line["test"].split("::")[0]).name != name:
            continue
        outcome = line["outcome"]
        row["seconds"] = round(row["seconds"] + line["seconds"], 1)
        if outcome == "failed" and _is_known(line):
            row["known"] += 1
            row["known_cases"].append({"test": line["test"], "difference": line["difference"]})
            continue
        row[outcome] += 1
        if outcome == "failed" and len(row["failures"]) < 12:
            kept = {key: line[key] for key in ("test", "why", "difference") if key in line}
            row["failures"].append(kept)
    return row


def _is_known(line: Mapping[str, Any]) -> bool:
    """Whether it is one of the cases that are known, and no further apart than one step."""
    gap = line.get("difference", {}).get("largest_relative")
    return bool(KNOWN.search(str(line["test"]))) and gap is not None and gap <= KNOWN_RELATIVE


def judged(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what is wrong: a failure that is not known, a file of which no test passed, or a crash.

    A file that the time limit cut has the cases that it reached, and its row says so.
    """
    reasons = []
    for name, row in rows.items():
        if row["failed"]:
            first = row["failures"][0]
            reasons.append(
                f"{name}: {row['failed']} failed, the first {first['test']}: {first.get('why', '')}"
            )
        elif not row["passed"] + row["known"]:
            how = "cut at the limit" if row["cut"] else f"pytest ended with {row['exit_code']}"
            reasons.append(f"{name}: no test passed, {how}")
            continue
        if not row["cut"] and (broke := _crash(row)):
            reasons.append(f"{name}: {broke}")
    return reasons


def _crash(row: Mapping[str, Any]) -> str:
    """Say how a process ended that had not come to its end; "" when every test has its line."""
    reached = sum(row[key] for key in ("passed", "failed", "skipped", "known"))
    collected = row.get("collected", 0)
    if reached < collected:
        return f"{reached} of {collected} tests ran, pytest ended with {row['exit_code']}"
    if row["exit_code"] not in _WHOLE:
        return f"pytest ended with {row['exit_code']}"
    return ""
