"""Records of stages: stage-<letter>.json in the work folder, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

PASSED, FAILED, DIED, LATE, NOT_RUN = "passed", "failed", "died", "late", "not run"
VERDICTS = (PASSED, FAILED, DIED, LATE, NOT_RUN)


def record_path(work: Path, letter: str) -> Path:
    return work / f"stage-{letter}.json"


def record(
    letter: str,
    verdict: str,
    *,
    here: dict[str, Any],
    numbers: dict[str, Any] | None = None,
    reason: str = "",
    seconds: float = 0.0,
) -> dict[str, Any]:
    """Give a stage's record. here: card, commit, versions and sources, as here.facts() gives them."""
    assert verdict in VERDICTS, verdict
    return {
        "stage": letter,
        "verdict": verdict,
        "reason": reason,
        "seconds": round(seconds, 1),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **here,
        "numbers": numbers or {},
    }


def write_json(path: Path, value: Any) -> None:
    """Write a file that is either the old one or the new one; JSON has no NaN: words stand for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(value), ensure_ascii=False, indent=1, allow_nan=False)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Give what a file holds; None when it is not there, or was not written by us."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def passed_already(work: Path, letter: str, sources: dict[str, str]) -> bool:
    """Whether a stage passed with exactly these sources."""
    found = read_json(record_path(work, letter))
    return found is not None and found.get("verdict") == PASSED and found.get("sources") == sources


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
