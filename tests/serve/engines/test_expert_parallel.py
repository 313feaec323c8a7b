"""Ranks that share the experts: right answers, padding, and the end of all when one is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.serve.engines.expert_parallel import is_held, share
from dih20.serve.engines.reference import ReferenceEngine
from tests.serve.engines.ranks import Ranks, processor_seconds
from tests.serve.engines.stand import greedy, log_probs, run, said
from v41.canary import FOLDER
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer
from v41.checkpoint import CheckpointReader

pytestmark = pytest.mark.torch
WITHIN_S = 30.0


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_share_the_experts_give_the_bits_of_one_rank(
    count: int, engine: ReferenceEngine, tokenizer: Tokenizer
) -> None:
    """Rank 1 has the long prompt, rank 0 short ones, the last of three nothing: it pads."""
    prompts = {id: tokenizer.encode(QUESTIONS[id].prompt) for id in (0, 12)}
    prompts[2] = [(7 * place) % 700 + 9 for place in range(100)]
    for id, prompt in prompts.items():
        engine.add(greedy(id, prompt, max_tokens=6))
    alone = run(engine)
    with Ranks(count) as ranks:
        ranks.wait_ready()
        held = [ranks.info[rank]["details"]["experts"] for rank in range(count)]
        assert held == (
            ["0 to 3 of 8", "4 to 7 of 8"]
            if count == 2
            else ["0 to 1 of 8", "2 to 4 of 8", "5 to 7 of 8"]
        )
        for id, prompt in prompts.items():
            ranks.ask(1 if id == 2 else 0, greedy(id, prompt, max_tokens=6))
        ranks.wait_answers()
        for id, heard in ranks.heard.items():
            assert heard.tokens == said(alone[id])
            assert heard.logprobs == log_probs(alone[id])
        _idle_ranks_wait_without_working(ranks)
        ranks.ask(count - 1, greedy(9, prompts[0]))
        ranks.wait_answers()
        assert ranks.heard[9].tokens == said(alone[0])
        ranks.close()
        ranks.wait_ended(list(range(count)), told=False)
        assert [child.exitcode for child in ranks.processes] == [0] * count, ranks.fatal


def _idle_ranks_wait_without_working(ranks: Ranks) -> None:
    pids = [ranks.pid(rank) for rank in range(ranks.count)]
    before = [processor_seconds(pid) for pid in pids]
    time.sleep(0.5)
    used = [processor_seconds(pid) - since for pid, since in zip(pids, before, strict=True)]
    assert max(used) <= 0.1, f"idle ranks worked {used} s of 0.5 s"


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("victim", "harm", "timeout_s", "words"),
    [
        (1, _kill, 20.0, "has ended"),
        (0, _kill, 20.0, "has ended"),
        (2, _stop, 4.0, "is stopped by a signal"),
    ],
)
def test_a_lost_rank_ends_the_others_and_is_named(
    victim: int, harm: Callable[[int], None], timeout_s: float, words: str, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.encode(QUESTIONS[0].prompt)
    with Ranks(3, rank_timeout_s=timeout_s) as ranks:
        ranks.wait_ready()
        for rank in range(3):
            ranks.ask(rank, greedy(rank, prompt, ignore_eos=True, max_tokens=1000))
        ranks.wait_tokens(3)
        harm(ranks.pid(victim))
        others = [rank for rank in range(3) if rank != victim]
        took = ranks.wait_ended(others)
        assert took < WITHIN_S
        for rank in others:
            assert f"rank {victim} " in ranks.fatal[rank]
            assert ".cc:" not in ranks.fatal[rank], "nothing of where gloo was compiled"
            assert ranks.processes[rank].exitcode == 1
        assert any(f"rank {victim} (process" in ranks.fatal[rank] for rank in others)
        assert any(words in ranks.fatal[rank] for rank in others), ranks.fatal


def test_a_rank_that_takes_no_part_in_steps_is_named_by_the_others(tokenizer: Tokenizer) -> None:
    factory = "tests.serve.engines.ranks:rank_one_never_steps"
    with Ranks(3, engine=factory, rank_timeout_s=4.0) as ranks:
        ranks.wait_ready()
        ranks.ask(0, greedy(0, tokenizer.encode(QUESTIONS[0].prompt)))
        assert ranks.wait_ended([0, 2]) < WITHIN_S
        for rank in (0, 2):
            assert "rank 1 (process" in ranks.fatal[rank]
        assert any("alive and stays in exchange" in ranks.fatal[rank] for rank in (0, 2))
        assert ranks.heard[0].tokens == []


def test_a_rank_that_dies_while_loading_ends_those_that_wait_for_it() -> None:
    factory = "tests.serve.engines.ranks:rank_one_dies_while_loading"
    with Ranks(2, engine=factory) as ranks:
        assert ranks.wait_ended([0]) < WITHIN_S
        assert "rank 1 (process" in ranks.fatal[0]
        assert "has ended" in ranks.fatal[0]


@pytest.mark.parametrize(("experts", "ranks"), [(8, 2), (8, 3), (384, 8), (4, 5)])
def test_every_expert_is_held_by_exactly_one_rank(experts: int, ranks: int) -> None:
    held = [expert for rank in range(ranks) for expert in share(experts, rank, ranks)]
    assert held == list(range(experts))
    sizes = {len(share(experts, rank, ranks)) for rank in range(ranks)}
    assert max(sizes) - min(sizes) <= 1


def test_a_rank_loads_its_experts_and_all_that_is_not_an_expert() -> None:
    names = [spec.name for spec in CheckpointReader(Path(FOLDER)).specs]
    held = [{name for name in names if is_held(name, share(8, rank, 3))} for rank in range(3)]
    assert set.union(*held) == set(names)
    common = set.intersection(*held)
    assert common == {name for name in names if ".ffn.experts." not in name}
    assert sum(len(each - common) for each in held) == len(set(names) - common)
