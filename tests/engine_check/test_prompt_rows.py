"""Stage d's verdict on log-probs of prompts: noise of near ties passes, a fault of all rows does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dih20.engine_check.cases import long_prompts
from dih20.engine_check.driver import Reply
from dih20.engine_check.prompt_rows import (
    FLOOR,
    MAY_BE_LEFT_OUT_BELOW,
    MEDIAN_LIMIT,
    of_prompts,
)
from dih20.engine_check.reference import Followed, Follower
from v41 import indexer

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def case(canary: Any) -> Followed:
    """300 tokens of facts: most rows see more than the 64 entries that are selected."""
    only_prompt = replace(long_prompts(canary.tokenizer)[2], golden=())
    with torch.no_grad():
        return Follower(canary).follow(only_prompt)


def replied(canary: Any, case: Followed, tap: Callable[[str, Any], Any]) -> Reply:
    prompt = torch.tensor([case.prompt])
    with torch.no_grad():
        model = canary.model(tap)
        rows = torch.log_softmax(model.extend(prompt, model.new_cache())[0], dim=-1)
    picked = rows[:-1].gather(1, prompt[0, 1:, None]).flatten()
    return Reply(prompt_logprobs=picked.tolist())


def bf16_steps(share: float) -> Callable[[str, Any], Any]:
    """Move this share of what layers hand on to the next bf16 number, up or down."""
    generator = torch.Generator().manual_seed(0)
    leaves = (".context", ".output", ".routed", ".q", ".streams", ".norm", ".latent")

    def tap(site: str, tensor: Any) -> Any:
        if not site.endswith(leaves):
            return tensor
        draw = torch.rand(tensor.shape, generator=generator)
        step = (draw < share / 2).to(torch.int16) - (draw > 1 - share / 2).to(torch.int16)
        moved = (tensor.bfloat16().view(torch.int16) + step).view(torch.bfloat16).float()
        return torch.where(tensor == 0, tensor, moved)

    return tap


def test_rounding_noise_is_within_the_limit_though_single_tokens_are_far(
    canary: Any, case: Followed
) -> None:
    numbers, wrong = of_prompts([case], [replied(canary, case, bf16_steps(0.05))])
    assert wrong == []
    assert numbers["tokens"] == 299
    assert 0 < numbers["median_difference"] < MEDIAN_LIMIT
    worst = numbers["worst"][0]
    assert abs(worst["got"] - worst["expected"]) > 5 * MEDIAN_LIMIT
    assert worst["router"] == case.router_margins[worst["position"] - 1]


def test_one_token_that_is_nats_away_is_named_and_does_not_decide(case: Followed) -> None:
    said = list(case.prompt_logprobs)
    said[46] -= 5.0
    numbers, wrong = of_prompts([case], [Reply(prompt_logprobs=said)])
    assert wrong == []
    assert (numbers["worst"][0]["case"], numbers["worst"][0]["position"]) == ("300 tokens", 47)
    assert numbers["share_beyond_1_nat"] == pytest.approx(1 / 299, abs=1e-6)


def test_a_selection_of_half_the_entries_shows_in_prompts(
    canary: Any, case: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = indexer.select
    monkeypatch.setattr(
        indexer, "select", lambda scores, allowed, topk: healthy(scores, allowed, topk // 2)
    )
    numbers, wrong = of_prompts([case], [replied(canary, case, bf16_steps(0.05))])
    median = numbers["median_difference"]
    assert wrong == [
        f"log-probs of prompt tokens differ by {median} in the median; {MEDIAN_LIMIT} at most"
    ]


def test_contexts_that_are_not_rotated_back_show_in_prompts(canary: Any, case: Followed) -> None:
    kept: dict[str, Any] = {}
    noise = bf16_steps(0.05)

    def tap(site: str, tensor: Any) -> Any:
        tensor = noise(site, tensor)
        if site.endswith(".context"):
            kept["context"] = tensor
        return kept["context"] if site.endswith(".context_unrotated") else tensor

    numbers, wrong = of_prompts([case], [replied(canary, case, tap)])
    assert numbers["median_difference"] > MEDIAN_LIMIT and len(wrong) == 1


def test_missing_tokens_and_values_that_are_no_numbers_fail(case: Followed) -> None:
    nan = [float("nan"), *case.prompt_logprobs[1:]]
    _, wrong = of_prompts([case, case], [Reply(prompt_logprobs=nan), Reply(prompt_logprobs=[0.0])])
    assert wrong == [
        "300 tokens: log-probs of 1 prompt tokens, expected 299",
        "1 log-probs of prompt tokens are not finite",
    ]
    numbers, wrong = of_prompts([case], [Reply()])
    assert numbers["median_difference"] is None and len(wrong) == 1


def test_each_row_has_the_smallest_margin_of_its_routers(canary: Any, case: Followed) -> None:
    assert len(case.router_margins) == len(case.prompt) - 1
    assert min(case.router_margins) >= 0 and max(case.router_margins) < 1


def test_tokens_that_the_sampler_leaves_out_are_counted_and_not_compared(case: Followed) -> None:
    """Upstream's sampler gives those behind a sum of 1 no probability; a likely token always has one."""
    order = sorted(range(len(case.prompt_logprobs)), key=lambda row: case.prompt_logprobs[row])
    rare, likely = order[0], order[-1]
    assert case.prompt_logprobs[rare] < MAY_BE_LEFT_OUT_BELOW < case.prompt_logprobs[likely]
    got = list(case.prompt_logprobs)
    got[rare] = FLOOR
    numbers, wrong = of_prompts([case], [Reply(prompt_logprobs=got)])
    assert wrong == []
    assert (numbers["without_probability"], numbers["share_beyond_1_nat"]) == (1, 0.0)
    got[likely] = FLOOR
    _, wrong = of_prompts([case], [Reply(prompt_logprobs=got)])
    assert wrong[0].startswith("1 prompt tokens have no probability at all")
    assert f"position {likely + 1};" in wrong[0]
