"""How long a start takes, and the first answer after it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.sse_streams import request_bytes, run_stream
from tests.serve.running import Server

STARTS = 5
QUESTION = "问题：中国的首都是哪里？\n答案："


def measure_starts(settings: dict[str, Any]) -> dict[str, Any]:
    """Give the median times of several starts: until the engine stands, is ready, answers."""
    rows = []
    for _ in range(STARTS):
        began = time.monotonic()
        with Server(_folder(), ready=False, **settings) as server:
            listening = time.monotonic() - began
            server.wait_ready()
            ready = time.monotonic() - began
            found = server.json("/readyz")
            body = {"model": "canary", "prompt": QUESTION, "stream": True}
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


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="dih20-starts-"))
