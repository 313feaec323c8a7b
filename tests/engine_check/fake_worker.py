"""A worker process without an engine: does to each stage, or fault, what FAKE_PLAN says.

FAKE_PLAN: {"c": "pass", "d": "die", "f": "hang", "keys-below-the-row": "die", ...}; pass if left out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dih20.engine_check import results

PLAN: dict[str, str] = json.loads(os.environ["FAKE_PLAN"])
HERE: dict[str, Any] = json.loads(os.environ["FAKE_HERE"])
FAULTS: list[str] = json.loads(os.environ["FAKE_FAULTS"])
ALONE: list[str] = json.loads(os.environ["FAKE_ALONE"])  # faults that get an engine of their own


def given(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


WORK, NAME, WORKER = Path(given("--work")), given("--name"), given("--worker")


def mark(stage: str, part: str = "") -> None:
    now = {"stage": stage, "part": part, "since": time.time()}
    results.write_json(WORK / f"now-{NAME}.json", now)


def act(what: str) -> None:
    with (WORK / "acts.txt").open("a") as acts:
        acts.write(f"{WORKER} {what}\n")
    plan = PLAN.get(f"{NAME}:{what}", PLAN.get(what, "pass"))
    if plan == "die":
        print(f"a fault in {what}", flush=True)
        os.abort()
    if plan == "hang":
        time.sleep(600)
    if plan == "hang once":
        once = WORK / f"hung-{what}"
        if not once.exists():
            once.touch()
            time.sleep(600)
    if plan == "raise":
        print(f"ValueError: {what}", flush=True)
        os._exit(3)


def record(letter: str) -> None:
    plan = PLAN.get(letter, "pass")
    verdict = {"pass": "passed", "fail": "failed"}[plan]
    if letter == "e":
        verdict = "not run"
    whole = results.record(letter, verdict, here=HERE, numbers={"n": 1}, reason="")
    results.write_json(results.record_path(WORK, letter), whole)


def faults() -> None:
    mine = [each for each in given("--faults").split(",") if each]
    mine = mine or [name for name in FAULTS if name not in ALONE]
    mine = [name for name in mine if not (WORK / f"fault-{name}.json").exists()]
    healthy = {"answers_right": 3, "answers_asked": 3, "sources": HERE["sources"]}
    mark("h", "healthy")
    act("healthy")
    results.write_json(WORK / f"healthy-{NAME}.json", healthy)
    for name in mine:
        mark("h", name)
        act(name)
        result = {"name": name, "verdict": "seen", "sources": HERE["sources"]}
        results.write_json(WORK / f"fault-{name}.json", result)


if "--judge" in sys.argv:
    act("judge")
    results.write_json(WORK / "judged.json", {"numbers": {"cases": {}}, "reasons": []})
    sys.exit(0)
mark("start")
act("start")
for stage in given("--letters"):
    mark(stage)
    act(stage)
    if stage == "h":
        faults()
    if stage == "e":
        results.write_json(WORK / "dumped.json", {"map_faults": {}, "sources": HERE["sources"]})
    if WORKER in ("graphs", "overlapped"):
        results.write_json(WORK / f"g-{WORKER}.json", {"numbers": {"1": {}}, "reasons": []})
    elif stage != "h":  # its record is written by the parent
        record(stage)
mark("close")
if f"{NAME}:close" in PLAN:
    act("close")
