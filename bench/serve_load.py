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
import asyncio
import json
import math
import os
import platform
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.sse_streams import Stream, get, percentiles, request_bytes, run_stream
from dih20.paths import REPOSITORY
from tests.serve.running import Server, descendants

RESULT = REPOSITORY / "bench" / "results" / "cpu" / "serve.json"
SERVER_CORE, LOAD_CORE = 0, 1
SETTLE_S = 0.5  # after the last stream's first token; what comes before is not counted
HISTOGRAM = "dih20_serve_gateway_overhead_seconds"
STARTS = 5


@dataclass(frozen=True, kw_only=True)
class Scenario:
    streams: int
    step_ms: int
    tokens: int  # of each stream
    pattern: str


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
            "load_average_before": round(load_before, 2),
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


def measure_streams(scenario: Scenario) -> dict[str, Any]:
    """Run all streams of a scenario at once and give what they and the server saw."""
    options = {
        "step_ms": scenario.step_ms,
        "staggered": scenario.pattern == "staggered",
        "max_model_len": 8192,
    }
    with _server(engine_options=options) as server:
        busy = {pid: _cpu_s(pid) for pid in server.processes()}
        started, own = time.monotonic(), time.process_time()
        streams, settled_ns, metrics = asyncio.run(_run(server.port, scenario))
        took, own = time.monotonic() - started, time.process_time() - own
        shares = {_role(server, pid): (_cpu_s(pid) - busy[pid]) / took for pid in busy}
        before, after = histogram(metrics), histogram(server.get("/metrics")[1])
    errors = [stream.error or wrong_with(stream, scenario) for stream in streams]
    receipts = [
        (received - emitted) / 1e6
        for stream in streams
        for received, emitted in zip(stream.received_ns, stream.emitted_ns, strict=False)
        if emitted > settled_ns
    ]
    answered = sum(len(stream.emitted_ns) for stream in streams)
    return {
        "streams": scenario.streams,
        "step_ms": scenario.step_ms,
        "pattern": scenario.pattern,
        "seconds": round(took, 1),
        "tokens": answered,
        "errors": [error for error in errors if error][:5],
        "emission_to_socket_write_ms": quantiles_of(before, after),
        "emission_to_receipt_ms": percentiles(receipts),
        "gateway_us_per_token": round(shares["gateway"] * took * 1e6 / max(answered, 1), 1),
        "core_share": {name: round(share, 3) for name, share in sorted(shares.items())}
        | {"load_generator": round(own / took, 3)},
    }


async def _run(port: int, scenario: Scenario) -> tuple[list[Stream], int, str]:
    """Give the streams, when all of them ran, and the server's metrics of that moment."""
    body = {
        "model": "canary",
        "prompt": list(range(300, 340)),
        "max_tokens": scenario.tokens,
        "stream": True,
        "ignore_eos": True,
    }
    request = request_bytes("/v1/completions", body, stamps=True)
    wait_s = 60 + 3 * scenario.tokens * scenario.step_ms / 1000
    streams = [Stream() for _ in range(scenario.streams)]
    running = asyncio.gather(
        *(run_stream(port, request, timeout_s=wait_s, stream=stream) for stream in streams)
    )
    while not all(stream.events or stream.error for stream in streams):
        await asyncio.sleep(0.01)
    await asyncio.sleep(SETTLE_S)
    metrics = await get(port, "/metrics")
    settled_ns = time.monotonic_ns()
    await running
    return streams, settled_ns, metrics


def wrong_with(stream: Stream, scenario: Scenario) -> str:
    """Say what a stream that ended well lacks; empty when it is whole."""
    if len(stream.emitted_ns) < scenario.tokens:
        return f"{len(stream.emitted_ns)} of {scenario.tokens} tokens"
    return "" if stream.finish_reason() == "length" else f"ended by {stream.finish_reason()}"


def measure_starts(settings: dict[str, Any]) -> dict[str, Any]:
    """Give the median times of several starts: until the engine stands, is ready, answers."""
    rows = []
    for _ in range(STARTS):
        began = time.monotonic()
        with _server(ready=False, **settings) as server:
            listening = time.monotonic() - began
            server.wait_ready()
            ready = time.monotonic() - began
            found = server.json("/readyz")
            body = {"model": "canary", "prompt": "问题：中国的首都是哪里？\n答案：", "stream": True}
            body |= {"max_tokens": 8, "temperature": 0}
            request = request_bytes("/v1/completions", body)
            stream = asyncio.run(run_stream(server.port, request, timeout_s=60))
            assert not stream.error, stream.error
            first = (stream.received_ns[0] - stream.sent_ns) / 1e9
        rows.append(
            {
                "http_up_s": listening,
                "ready_s": ready,
                "engine_ready_to_readyz_s": found["phases_s"]["gating"],
                "known_answer_run_s": found["gate"]["seconds"],
                "first_token_s": first,
            }
        )
    return {key: round(sorted(row[key] for row in rows)[len(rows) // 2], 3) for key in rows[0]}


def _server(*, ready: bool = True, **settings: Any) -> Server:
    """Give a server that will run on its own core, and move this program to the other."""

    class Pinned(Server):
        def __enter__(self) -> Pinned:
            os.sched_setaffinity(0, {SERVER_CORE})
            try:
                return super().__enter__()
            finally:
                os.sched_setaffinity(0, {LOAD_CORE})

    return Pinned(Path(tempfile.mkdtemp(prefix="dih20-load-")), ready=ready, **settings)


def _role(server: Server, pid: int) -> str:
    if pid == server.process.pid:
        return "gateway"
    return "engine" if not descendants(pid) else "guard"


def _cpu_s(pid: int) -> float:
    """Give the processor seconds of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def histogram(metrics: str) -> dict[float, float]:
    """Give the server's overhead histogram: bounds in milliseconds, cumulative counts."""
    rows = re.findall(rf'^{HISTOGRAM}_bucket{{le="(.+?)"}} (\S+)$', metrics, re.M)
    return {float(bound) * 1000: float(count) for bound, count in rows}


def quantiles_of(before: dict[float, float], after: dict[float, float]) -> dict[str, Any]:
    """Give quantiles of what was added, in milliseconds, linear within a bucket."""
    added = [(bound, count - before[bound]) for bound, count in after.items()]
    total = added[-1][1]
    found: dict[str, Any] = {"tokens": int(total)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        at = next(i for i, (_, count) in enumerate(added) if count >= share * total)
        low, below = added[at - 1] if at else (0.0, 0.0)
        bound, count = added[at]
        if bound == math.inf:
            found[name] = f"above {low:g}"
        else:
            found[name] = round(low + (bound - low) * (share * total - below) / (count - below), 3)
    return found


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _cpu() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
