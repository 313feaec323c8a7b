"""The official client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.running import Server

OCEAN = "Question: What is the largest ocean?\nAnswer:"


@pytest.fixture
def client(idle: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{idle.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_the_client_lists_the_served_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["canary"]


def test_a_completion_answers_a_known_question(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="canary", prompt=OCEAN, temperature=0)
    assert answer.choices[0].text == " the Pacific Ocean"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens > 0


def test_a_stream_of_a_completion_holds_the_same_text_and_usage(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="canary", prompt="天空是蓝色", max_tokens=23)
    stream = client.completions.create(
        model="canary",
        prompt="天空是蓝色",
        max_tokens=23,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts = list(stream)
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    reasons = [part.choices[0].finish_reason for part in parts if part.choices]
    assert [reason for reason in reasons if reason] == ["length"]
    assert parts[-1].choices == []
    assert parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1


def test_a_chat_and_its_stream_hold_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="canary", messages=chat("北京"), max_completion_tokens=12
    )
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(
        model="canary", messages=chat("北京"), max_completion_tokens=12, stream=True
    )
    deltas = [part.choices[0].delta for part in stream if part.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == text


def test_log_probs_of_a_chat_have_the_shape_the_client_knows(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="canary", messages=chat("北京"), max_tokens=3, logprobs=True, top_logprobs=2
    )
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None
    assert len(found.content) == 3
    for row in found.content:
        assert row.logprob < 0
        assert len(row.top_logprobs) == 2
        assert row.top_logprobs[0].logprob == row.logprob


def test_log_probs_of_a_completion_have_the_shape_the_client_knows(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="canary", prompt="北京", max_tokens=3, logprobs=1)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens is not None
    assert "".join(found.tokens) == answer.choices[0].text
    assert found.token_logprobs is not None and all(value < 0 for value in found.token_logprobs)
    assert found.text_offset is not None and found.text_offset[0] == 0


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    prompt = "1 2 3 4 5 6 7 8"
    answer = client.completions.create(model="canary", prompt=prompt, max_tokens=30, stop=["4 5"])
    assert answer.choices[0].text == "1 2 3 "
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("change", "fault", "param"),
    [
        ({"model": "gpt-x"}, openai.NotFoundError, "model"),
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"logit_bias": {"5": 100}}, openai.BadRequestError, "logit_bias"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"no_such_thing": 1}}, openai.BadRequestError, "no_such_thing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_in_the_shape_of_the_client(
    client: openai.OpenAI, change: dict[str, Any], fault: type[openai.APIStatusError], param: str
) -> None:
    arguments: dict[str, Any] = {"model": "canary", "prompt": "北京"} | change
    with pytest.raises(fault) as caught:
        client.completions.create(**arguments)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert param in caught.value.message


def test_a_stream_that_the_client_closes_is_cancelled(client: openai.OpenAI, idle: Server) -> None:
    cancelled = 'dih20_serve_requests_total{outcome="cancelled"}'
    before = idle.metric(cancelled)
    stream = client.completions.create(model="canary", prompt="北京", max_tokens=8_000, stream=True)
    for _, _ in zip(stream, range(3), strict=False):
        pass
    assert idle.metric("dih20_serve_running") == 1
    stream.close()
    idle.wait_until(lambda: idle.metric(cancelled) == before + 1, "the cancel", 20)
    assert idle.metric("dih20_serve_running") == 0


async def _many(url: str, streams: int) -> list[str]:
    import asyncio

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        prompt = f"{number} + {number}"
        stream = await client.completions.create(
            model="canary", prompt=prompt, max_tokens=20, stream=True
        )
        return "".join([part.choices[0].text async for part in stream])

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(one(client, number) for number in range(streams)))


def test_streams_side_by_side_do_not_mix(idle: Server) -> None:
    import asyncio

    texts = asyncio.run(_many(idle.url, 24))
    for number, text in enumerate(texts):
        prompt = f"{number} + {number}"
        assert (prompt * 20).startswith(text) and text.startswith(prompt[:1])
