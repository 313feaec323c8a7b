"""Measure what a wheel that is in the store costs, and what listing the tasks costs.

    .venv/bin/python bench/wheels.py            writes bench/results/cpu/wheels.json

It needs an engine (DOCKER_HOST) with a di-h20 image and `./inv build-vendor` done there before.
Medians of whole commands, python's start included.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dih20.paths import REPOSITORY

REPEATS = 7
RESULT = REPOSITORY / "bench" / "results" / "cpu" / "wheels.json"
INV = str(REPOSITORY / "inv")


def main() -> None:
    only, image = os.environ.get("BENCH_ONLY", "h20_probe"), os.environ.get("BENCH_IMAGE", "")
    command = [INV, "build-vendor", "--only", only, "--json"] + (
        ["--image", image] if image else []
    )
    first = json.loads(_run(command))
    rows = first["result"]["wheels"]
    if any(row["status"] not in ("hit", "skipped") for row in rows):
        sys.exit(
            f"not a measurement of hits: {[(row['name'], row['status']) for row in rows]}; run it again"
        )
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(terse=True),
            "load_before": round(os.getloadavg()[0], 1),
        },
        "wheels": {
            row["name"]: {"lookup_s": row["seconds"]} for row in rows if row["status"] == "hit"
        },
        "command_with_only_hits_s": _times(command),
        "inv_list_s": _times([INV, "--list"]),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _times(command: list[str]) -> dict[str, float]:
    seconds = []
    for _ in range(REPEATS):
        started = time.monotonic()
        _run(command)
        seconds.append(time.monotonic() - started)
    return {
        "median": round(statistics.median(seconds), 2),
        "worst": round(max(seconds), 2),
        "repeats": REPEATS,
    }


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(command)}` exited {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
