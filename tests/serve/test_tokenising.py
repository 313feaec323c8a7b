"""Long prompts are tokenised one at a time, a bounded number waits, and what cannot fit is known."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dih20.serve.service import CANARY_FOLDER
from dih20.serve.text.codec import Codec
from dih20.serve.text.tokenising import Busy, Tokenising


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load(CANARY_FOLDER, canary=True)


def test_one_works_the_next_wait_and_one_too_many_is_refused() -> None:
    async def scene() -> None:
        tokenising, gate = Tokenising(3), threading.Event()
        at_once: list[int] = []
        lock = threading.Lock()

        def work() -> list[int]:
            assert lock.acquire(blocking=False), "two at a time"
            gate.wait(30)
            lock.release()
            at_once.append(1)
            return [5]

        first = [asyncio.create_task(tokenising.run(work)) for _ in range(3)]
        await asyncio.sleep(0)  # the tasks begin; the loop is free while the thread works
        with pytest.raises(Busy):
            await tokenising.run(work)
        gate.set()
        assert await asyncio.gather(*first) == [[5], [5], [5]]
        assert await tokenising.run(work) == [5]

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_work_whose_client_left_counts_until_it_is_done() -> None:
    async def scene() -> None:
        tokenising, gate, begun = Tokenising(1), threading.Event(), threading.Event()

        def work() -> list[int]:
            begun.set()
            gate.wait(30)
            return []

        task = asyncio.create_task(tokenising.run(work))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(Busy):
            await tokenising.run(work)
        gate.set()
        while True:
            try:
                assert await tokenising.run(lambda: [7]) == [7]
                return
            except Busy:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_fault_in_the_work_reaches_who_asked() -> None:
    def work() -> list[int]:
        raise ValueError("no such text")

    async def scene() -> None:
        tokenising = Tokenising(1)
        for _ in range(3):
            with pytest.raises(ValueError, match="no such text"):
                await tokenising.run(work)
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "1 2 3 4 " * 50,
        "中国的首都是哪里" * 40,
        " the Pacific Ocean" * 30,
        "\x00\xff é 😀" * 9,
    ]
    + ["Question: What is the largest ocean?\nAnswer:" * 20],
)
def test_a_text_never_has_fewer_tokens_than_said(codec: Codec, text: str) -> None:
    assert codec.fewest_tokens(text) <= len(codec.encode(text, special=False))


def test_a_text_of_a_megabyte_is_known_not_to_fit(codec: Codec) -> None:
    assert codec.fewest_tokens("ab 1 " * 200_000) > 16_384
