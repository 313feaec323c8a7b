"""How long jobs took on this machine, the last time each ran: build/ci/times.json."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dih20.paths import build_dir


def times_file() -> Path:
    """Give where the times are kept."""
    return build_dir() / "ci" / "times.json"


def read_times() -> dict[str, dict[str, Any]]:
    """Give {job: {where: {seconds, exit_code, at}}}; nothing where no job has run yet."""
    try:
        found: dict[str, dict[str, Any]] = json.loads(times_file().read_text())
    except (OSError, ValueError):
        return {}
    return found


def record(job: str, where: str, *, seconds: float, exit_code: int, **facts: Any) -> None:
    """Note one run of a job; `facts` say what it ran, and in which image."""
    entry = {
        "seconds": round(seconds, 1),
        "exit_code": exit_code,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        **facts,
    }
    times = read_times()
    times.setdefault(job, {})[where] = entry
    path = times_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n")
    fresh.replace(path)


def shown_time(job: str) -> str:
    """Give the last times of a job as text."""
    return ", ".join(
        f"{entry['seconds']:.0f} s {where}" + ("" if entry["exit_code"] == 0 else ", failed")
        for where, entry in sorted(read_times().get(job, {}).items())
    )
