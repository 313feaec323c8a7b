"""Choosing a token: greedy, temperature, top_p, seeds, and log-probs before all of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from dih20.serve.engines.interface import EngineRequest
from dih20.serve.engines.refusal import why_refused
from dih20.serve.engines.sampling import Sampler

pytestmark = pytest.mark.torch
LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def request(**values: Any) -> EngineRequest:
    given: dict[str, Any] = {"id": 1, "prompt": [1], "max_tokens": 5} | values
    return EngineRequest(**given)


def draws(count: int, **values: Any) -> Counter[int]:
    sampler = Sampler(request(seed=3, **values))
    return Counter(sampler.choose(LOGITS).token for _ in range(count))


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_greedy_takes_the_best_token(temperature: float) -> None:
    assert draws(20, temperature=temperature) == {1: 20}


def test_of_equal_tokens_greedy_takes_the_lowest() -> None:
    sampler = Sampler(request(temperature=0.0))
    assert sampler.choose(torch.tensor([0.0, 5.0, 5.0])).token == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_at_that_temperature(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, dim=-1)
    counted = draws(4000, temperature=temperature)
    for token, probability in enumerate(expected.tolist()):
        spread = math.sqrt(4000 * probability * (1 - probability))
        assert abs(counted[token] - 4000 * probability) < 5 * spread + 1


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    best, second, *_ = torch.softmax(LOGITS, dim=-1).sort(descending=True).values.tolist()
    assert set(draws(500, top_p=best - 0.01)) == {1}
    assert set(draws(500, top_p=best + 0.01)) == {1, 2}
    assert set(draws(500, top_p=best + second + 0.01)) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0, 7.0])
def test_log_probs_are_the_models_at_any_temperature_and_top_p(temperature: float) -> None:
    model = torch.log_softmax(LOGITS, dim=-1)
    sampler = Sampler(request(temperature=temperature, top_p=0.9, seed=1, logprobs=4))
    for _ in range(10):
        choice = sampler.choose(LOGITS)
        assert choice.log_prob == pytest.approx(float(model[choice.token]))
        assert [token for token, _ in choice.top] == [1, 2, 0, 3]
        assert [value for _, value in choice.top] == pytest.approx(model[[1, 2, 0, 3]].tolist())


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(request(seed=seed))
        return [sampler.choose(LOGITS).token for _ in range(40)]

    assert tokens(5) == tokens(5) != tokens(6)
    assert tokens(-1) == tokens(2**64 - 1)
    assert tokens(None) != tokens(None)


def test_an_extreme_temperature_still_draws_a_token() -> None:
    for temperature in (1e-5, 1e30):
        assert draws(5, temperature=temperature).total() == 5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_seen(bad: float, temperature: float) -> None:
    sampler = Sampler(request(temperature=temperature))
    assert not sampler.choose(torch.tensor([1.0, bad, 2.0])).is_a_number
    assert not sampler.choose(torch.full((3,), -math.inf)).is_a_number


def test_a_token_ruled_out_by_the_model_is_never_drawn() -> None:
    sampler = Sampler(request(seed=1))
    drawn = {sampler.choose(torch.tensor([-math.inf, 0.0, -math.inf])).token for _ in range(50)}
    assert drawn == {1}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [1] * 10}, "room for 10"),
        ({"prompt": [1, -1]}, "token -1 is not"),
        ({"prompt": [1, 8]}, "token 8 is not"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_a_request_that_cannot_run_is_told_why(values: dict[str, Any], said: str) -> None:
    assert said in (why_refused(request(**values), vocab_size=8, max_model_len=10) or "")


def test_a_request_that_can_run_is_not_refused() -> None:
    assert why_refused(request(prompt=[7] * 9), vocab_size=8, max_model_len=10) is None
