"""The load generator notices what is wrong; the checks of leftovers notice what is left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.overhead_histogram import quantiles_of
from bench.serve_load import RESULT, SCENARIOS
from bench.serve_streams import Scenario, wrong_with
from bench.serving_numbers import GUIDE, with_numbers
from bench.sse_streams import Stream, StreamProtocol, percentiles, run_stream
from tests.serve.running import Server, descendants, is_alive

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [
    b': emitted 17\ndata: {"choices":[{"text":"a","finish_reason":null}]}\n\n',
    b': emitted 19\ndata: {"choices":[{"text":"b","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n',
]
SCENARIO = Scenario(streams=1, step_ms=1, tokens=2, pattern="lockstep")


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def fed(*pieces: bytes) -> Stream:
    """Give what a stream is after these pieces and the end of the connection."""

    async def feed() -> Stream:
        stream, ended = Stream(), asyncio.get_running_loop().create_future()
        protocol = StreamProtocol(b"", stream, ended)
        for piece in pieces:
            protocol.data_received(piece)
        protocol.connection_lost(None)
        await ended
        return stream

    return asyncio.run(feed())


def test_a_whole_stream_is_read_alike_wherever_it_is_cut() -> None:
    data = HEAD + chunks(*EVENTS)
    for cut in range(1, len(data)):
        stream = fed(data[:cut], data[cut:])
        assert stream.error == "", cut
        assert stream.emitted_ns == [17, 19]
        assert stream.tokens() == 2
        assert stream.finish_reason() == "length"
        assert wrong_with(stream, SCENARIO) == ""


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (HEAD + chunks(EVENTS[0]), "before [DONE]"),
        (HEAD + chunks(*EVENTS)[:-5], "connection was lost"),
        (HEAD, "connection was lost"),
        (b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\n{}", "429"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "200"),
    ],
)
def test_a_stream_that_is_not_whole_is_an_error(data: bytes, error: str) -> None:
    assert error in fed(data).error


def test_too_few_tokens_and_another_end_are_errors() -> None:
    stream = fed(HEAD + chunks(*EVENTS))
    more = Scenario(streams=1, step_ms=1, tokens=3, pattern="lockstep")
    assert wrong_with(stream, more) == "2 of 3 tokens"
    stopped = fed(HEAD + chunks(*EVENTS[:2], EVENTS[2].replace(b"length", b"stop")))
    assert wrong_with(stopped, SCENARIO) == "ended by stop"


def test_nobody_listening_is_an_error_not_a_crash() -> None:
    stream = asyncio.run(run_stream(1, b"", timeout_s=5))
    assert "no connection" in stream.error


def test_percentiles_are_those_of_the_values() -> None:
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert percentiles([]) == {}


def test_quantiles_of_a_histogram_are_of_what_was_added_between_two_looks() -> None:
    before = {0.1: 1000.0, 0.2: 1000.0, 0.4: 1000.0, float("inf"): 1000.0}
    after = {0.1: 1000.0, 0.2: 1050.0, 0.4: 1100.0, float("inf"): 1100.0}
    assert quantiles_of(before, after) == {"tokens": 100, "p50": 0.2, "p99": 0.396}
    after[float("inf")] = 1200.0
    assert quantiles_of(before, after) == {"tokens": 200, "p50": 0.4, "p99": "above 0.4"}


def test_a_process_that_stays_is_named(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert server.process.pid in descendants(os.getpid())
        server.note_processes()
        with pytest.raises(AssertionError, match=r"left: \['\d+: .*time.sleep"):
            server.prove_nothing_is_left(timeout_s=0.3)
    finally:
        server.process.kill()
        server.process.wait()
    assert not is_alive(server.process.pid)
    server.prove_nothing_is_left()


def test_the_numbers_of_the_guide_are_those_of_the_result_file() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert with_numbers(text) == text, "run: python -m bench.serving_numbers"


def test_no_stream_of_the_recorded_run_failed() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert [row["errors"] for row in result["gateway"]] == [[]] * len(SCENARIOS)
    assert result["starts"]["canary"]["first_token_s"] < 2
    for row in result["starts"].values():
        assert row["engine_ready_to_readyz_s"] < row["known_answer_run_s"] + 1
