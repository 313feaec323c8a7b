"""Many streams at once, as they and the server see them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from bench.overhead_histogram import histogram, quantiles_of
from bench.pinned_server import PinnedServer
from bench.sse_streams import Stream, get, percentiles, request_bytes, run_stream

SETTLE_S = 0.5  # after the last stream's first token; what comes before is not counted


@dataclass(frozen=True, kw_only=True)
class Scenario:
    streams: int
    step_ms: int
    tokens: int  # of each stream
    pattern: str


def measure_streams(scenario: Scenario) -> dict[str, Any]:
    """Run all streams of a scenario at once and give what they and the server saw."""
    options = {
        "step_ms": scenario.step_ms,
        "staggered": scenario.pattern == "staggered",
        "max_model_len": 8192,
    }
    with PinnedServer(engine_options=options) as server:
        busy = server.cpu_s()
        started, own = time.monotonic(), time.process_time()
        streams, settled_ns, metrics = asyncio.run(_run(server.port, scenario))
        took, own = time.monotonic() - started, time.process_time() - own
        shares = {name: (now - busy[name]) / took for name, now in server.cpu_s().items()}
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
