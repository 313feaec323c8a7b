"""The engine's answer is read however it is cut (F14)."""

from __future__ import annotations

import json

import pytest

from dih20.image.jsonfeed import JsonFeed, objects

ANSWER = (
    b'{"stream":"one\\n"}\r\n{"stream":"z\xc3\xbcrich\\n"}{"errorDetail":{"code":1},"error":"stop"}'
)


def test_two_objects_in_one_chunk_are_two_objects() -> None:
    assert [entry.get("stream") for entry in objects([b'{"stream":"a"}{"stream":"b"}'])] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize("size", range(1, len(ANSWER) + 1))
def test_any_cut_gives_the_same_objects(size: int) -> None:
    chunks = [ANSWER[i : i + size] for i in range(0, len(ANSWER), size)]
    assert list(objects(chunks)) == [
        {"stream": "one\n"},
        {"stream": "zürich\n"},
        {"errorDetail": {"code": 1}, "error": "stop"},
    ]


def test_a_byte_that_is_not_utf8_is_replaced_and_the_rest_is_read() -> None:
    entries = list(objects([b'{"stream":"bad \xff byte"}', b'{"stream":"next"}']))
    assert [entry["stream"] for entry in entries] == ["bad \ufffd byte", "next"]


def test_raw_control_characters_inside_a_string_are_output() -> None:
    assert list(objects([b'{"stream":"a\tb"}'])) == [{"stream": "a\tb"}]


def test_text_that_is_no_object_comes_out_as_text() -> None:
    assert list(objects([b"panic: no space\n", b'{"stream":"x"}'])) == [
        {"stream": "panic: no space\n"},
        {"stream": "x"},
    ]


def test_an_answer_that_breaks_off_keeps_what_came() -> None:
    feed = JsonFeed()
    assert list(feed.feed(b'{"stream":"whole"}{"stream":"ha')) == [{"stream": "whole"}]
    assert list(feed.close()) == [{"stream": '{"stream":"ha'}]


def test_many_objects_in_small_chunks_are_read_in_reasonable_time() -> None:
    lines = b"".join(json.dumps({"stream": f"line {i}\n"}).encode() + b"\n" for i in range(20_000))
    chunks = [lines[i : i + 97] for i in range(0, len(lines), 97)]
    assert sum(1 for _ in objects(chunks)) == 20_000
