"""What a client is shown of an answer, chunk by chunk: characters, stop strings, log-probs."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from typing import Any

import pytest

from dih20.serve.api.answer import Answer
from dih20.serve.api.frames import Frames
from dih20.serve.api.params import Asked, parse
from dih20.serve.api.sinks import WholeSink
from dih20.serve.api.stream_sink import StreamSink
from dih20.serve.metrics import Metrics
from dih20.serve.service import CANARY_FOLDER
from dih20.serve.settings import Limits
from dih20.serve.text.codec import Codec

END = 1


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load(CANARY_FOLDER, canary=True)


def asked(chat: bool = False, **fields: Any) -> Asked:
    what: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
    )
    body = json.dumps({"model": "canary", **what, **fields}).encode()
    return parse(body, "chat" if chat else "completions", Limits())


def emissions(ids: list[int], finish: str, per_step: int = 1) -> list[list[Any]]:
    found = []
    for at in range(0, len(ids), per_step):
        step = ids[at : at + per_step]
        last = at + per_step >= len(ids)
        values = [-0.5] * len(step)
        top = [[[id, -0.5], [id + 1, -1.5]] for id in step]
        found.append([1, step, values, top, finish if last else None, 1, ""])
    return found


class Wire(asyncio.Transport):
    """A connection whose other end can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.kept, self.aborted = bytearray(), False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.ours

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.kept += data

    def abort(self) -> None:
        self.aborted = True

    def events(self) -> list[Any]:
        """Give the events so far, each taken out of a chunk of its own or shared."""
        self.theirs.setblocking(False)
        data = self.theirs.recv(1 << 20) + bytes(self.kept)
        body = b""
        while data:
            size, _, data = data.partition(b"\r\n")
            length = int(size, 16)
            body, data = body + data[:length], data[length + 2 :]
        lines = [line[6:] for line in body.split(b"\n\n") if line]
        return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def streamed(
    codec: Codec, request: Asked, steps: list[list[Any]], wire: Wire | None = None
) -> tuple[list[Any], StreamSink]:
    """Send the steps through a sink; give its events."""

    async def run() -> tuple[list[Any], StreamSink]:
        connection = wire or Wire()
        frames = Frames(
            id="x", created=1, model="canary", chat=request.chat,
            include_usage=request.include_usage,
        )  # fmt: skip
        sink = StreamSink(
            Answer(request, codec, 3), frames, connection, Metrics(), codec.json_table,
            with_log_probs=request.logprobs is not None, plain=not request.stop,
            include_usage=request.include_usage, stamped=False, buffer_bytes=1 << 12,
        )  # fmt: skip
        for step in steps:
            enough = sink.take(step)
            if sink.first.done() and sink.first_ns and not sink._is_open:
                sink.open()
            if enough:
                break
        return connection.events() if sink.first_ns else [], sink

    return asyncio.run(run())


def texts(events: list[Any]) -> list[str]:
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]
    return [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]


def whole(codec: Codec, request: Asked, steps: list[list[Any]]) -> WholeSink:
    async def run() -> WholeSink:
        sink = WholeSink(Answer(request, codec, 3), request.logprobs is not None)
        for step in steps:
            if sink.take(step):
                break
        return sink

    return asyncio.run(run())


@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize("chat", [False, True])
def test_characters_made_of_several_tokens_are_shown_whole(
    codec: Codec, chat: bool, per_step: int
) -> None:
    text = "北京 🙂 ok — é"
    ids = codec.encode(text, special=True)
    assert len(ids) > len(text), "some characters are several tokens"
    events, _ = streamed(codec, asked(chat, stream=True), emissions([*ids, END], "stop", per_step))
    assert "".join(texts(events)) == text
    assert "\ufffd" not in "".join(texts(events))
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


def test_an_answer_cut_within_a_character_says_so(codec: Codec) -> None:
    ids = codec.encode("a🙂", special=True)[:-1]
    events, _ = streamed(codec, asked(stream=True), emissions(ids, "length"))
    assert "".join(texts(events)) == "a\ufffd"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_is_never_shown(codec: Codec, stream: bool) -> None:
    ids = codec.encode("one two three four", special=True)
    request = asked(stream=stream, stop=["o th", "zzz"])
    steps = emissions(ids, "length")
    if stream:
        events, sink = streamed(codec, request, steps)
        text = "".join(texts(events))
        assert events[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        kept = whole(codec, request, steps)
        text, sink = kept.text, kept  # type: ignore[assignment]
    assert text == "one tw"
    assert sink.answer.finish == "stop"
    assert sink.answer.tokens < len(ids), "the engine is told to stop"


def test_a_stop_string_that_never_comes_costs_no_text(codec: Codec) -> None:
    ids = codec.encode("one two", special=True)
    kept = whole(codec, asked(stop="two!"), emissions(ids, "length"))
    assert (kept.text, kept.answer.finish) == ("one two", "length")


def test_usage_counts_what_the_engine_gave(codec: Codec) -> None:
    events, _ = streamed(
        codec,
        asked(stream=True, stream_options={"include_usage": True}),
        emissions([324, END], "stop"),
    )
    assert events[-2]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert events[-2]["choices"] == []
    assert all(event["usage"] is None for event in events[:-2])


def test_a_chat_begins_with_the_role(codec: Codec) -> None:
    events, _ = streamed(codec, asked(True, stream=True), emissions([324, END], "stop"))
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[0]["object"] == "chat.completion.chunk"


def test_streamed_log_probs_leave_out_the_end_token(codec: Codec) -> None:
    request = asked(True, stream=True, logprobs=True, top_logprobs=2)
    events, _ = streamed(codec, request, emissions([324, 537, END], "stop"))
    rows = [
        row
        for event in events[:-1]
        for row in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [row["token"] for row in rows] == ["北京", "十"]
    assert bytes(rows[0]["bytes"]).decode() == "北京"
    assert [top["logprob"] for top in rows[0]["top_logprobs"]] == [-0.5, -1.5]


def test_log_probs_of_parts_of_a_character_keep_its_bytes(codec: Codec) -> None:
    ids = codec.encode("🙂", special=True)
    kept = whole(codec, asked(True, logprobs=True), emissions(ids, "length"))
    assert kept.log_probs is not None
    assert bytes(b for row in kept.log_probs["content"] for b in row["bytes"]).decode() == "🙂"


def test_text_offsets_of_a_completion_grow_with_its_text(codec: Codec) -> None:
    ids = codec.encode("one two", special=True)
    kept = whole(codec, asked(logprobs=1), emissions(ids, "length", per_step=2))
    assert kept.log_probs is not None
    assert "".join(kept.log_probs["tokens"]) == "one two"
    assert kept.log_probs["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_log_prob_that_is_no_number_ends_the_request_with_an_error(
    codec: Codec, value: float | None
) -> None:
    step = [1, [324], [value], [], None, 1, ""]
    kept = whole(codec, asked(logprobs=0), [step])
    assert kept.error is not None
    assert kept.error[0] == 500


def test_impossible_tokens_get_the_number_that_clients_know(codec: Codec) -> None:
    step = [1, [324], [-math.inf], [], "length", 1, ""]
    kept = whole(codec, asked(logprobs=0), [step])
    assert kept.log_probs is not None
    assert kept.log_probs["token_logprobs"] == [-9999.0]


def test_a_client_that_takes_too_little_is_given_up(codec: Codec) -> None:
    wire = Wire()
    steps = emissions([324] * 20_000, "length")
    _, sink = streamed(codec, asked(stream=True), steps, wire)
    assert wire.aborted
    assert len(wire.kept) <= 1 << 12
    assert sink.answer.tokens < 20_000


def test_an_engine_that_refuses_before_the_first_token_leaves_room_for_a_status(
    codec: Codec,
) -> None:
    _, sink = streamed(codec, asked(stream=True), [[1, [], [], [], "error", 1, "too long"]])
    assert sink.error == (400, "too long")
    assert sink.first_ns == 0
