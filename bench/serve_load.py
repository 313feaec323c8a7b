"""Measure the server: gateway overhead per streamed token, starts, first tokens.

    .venv/bin/python -m bench.serve_load [--out FILE]     writes bench/results/cpu/serve.json

The gateway and the engine share the first core, this load generator has the second for itself;
its share of that core is in the result, so that a slow generator is not taken for a slow server.
The engine is a paced one without a model: what is measured is the gateway. Two patterns:
`lockstep` emits the tokens of all streams at one instant, as one batched step does, so that the
last stream's token waits for the sends of all others; `staggered` gives each stream its own phase.
Overhead is taken twice: by the server's histogram, from emission to after the socket write, and
from emission to receipt here, which also holds the network stack and this program's own wake-up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path

from bench.serve_starts import measure_starts
from bench.serve_streams import Scenario, measure_streams
from dih20.paths import REPOSITORY

RESULT = REPOSITORY / "bench" / "results" / "cpu" / "serve.json"
SCENARIOS = [
    Scenario(streams=streams, step_ms=step_ms, tokens=tokens, pattern=pattern)
    for streams, step_ms, tokens in ((64, 20, 750), (256, 50, 400))
    for pattern in ("lockstep", "staggered")
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=RESULT)
    out: Path = parser.parse_args().out
    load_before = os.getloadavg()[0]
    result = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": _commit(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": platform.platform(terse=True),
            "load_average_before": round(load_before, 2),  # of others: latencies depend on it
            "real_time_priority": os.sched_getscheduler(0) != os.SCHED_OTHER,
        },
        "gateway": [measure_streams(scenario) for scenario in SCENARIOS],
        "starts": {
            "paced": measure_starts({}),
            "canary": measure_starts({"engine": "reference"}),
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _cpu() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
