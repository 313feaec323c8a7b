"""The edit that takes log-probs before temperature, run on a CPU with upstream's own reference."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from tests.serve.engines.upstream import defined, edited, functions, unpacked

pytestmark = pytest.mark.torch
VOCAB, GREEDY = 64, 1e-5  # upstream makes greedy a temperature of 1e-5
Sample = Callable[..., tuple[Any, ...]]


class Transform(NamedTuple):
    temperatures: torch.Tensor
    top_ps: torch.Tensor
    top_ks: torch.Tensor


class Sampling(NamedTuple):
    logits: Transform
    seq_seeds: torch.Tensor
    sample_positions: torch.Tensor


def process_sampling(package: Path, *added: str) -> Sample:
    """Take the function out of a tree; the kernel below it is upstream's reference in torch."""
    layers = package / "model_executor" / "layers"
    ops = layers / "tilelang_ops"
    names = ("i64", "urshift", "_hash_to_uniform", "random_sampling_ref")
    given: dict[str, Any] = {
        "torch": torch,
        "SamplingKernelInputs": Sampling,
        "LogitsTransformInputs": Transform,
        "DRAFT_PROB_PENALTY": 0.0,
        "_MTP_SEED_OFFSET": 1000000007,
        "topk": lambda x, k, _, indices_type: torch.topk(x, k),
    }
    bodies = [
        functions(ops / "random_sampling.py", *names),
        functions(ops / "fused_sample.py", "apply_top_p_top_k_ref", "fused_sample_ref"),
        functions(layers / "sampler_utils.py", *added, "process_sampling"),
    ]
    namespace = defined(bodies, given)
    reference = namespace["fused_sample_ref"]

    def kernel(logits: torch.Tensor, inputs: Any, **others: Any) -> Any:
        return reference(logits.clone(), inputs, **others)  # the kernel only reads its logits

    namespace["fused_sample"] = kernel
    found: Sample = namespace["process_sampling"]
    return found


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    released = unpacked(tmp_path_factory.mktemp("released"))
    package = edited(tmp_path_factory.mktemp("edited"), "P20-logprobs-before-temperature")
    return SimpleNamespace(
        released=process_sampling(released),
        edited=process_sampling(package, "model_log_probs"),
        sampler=released / "model_executor" / "layers" / "sampler.py",
    )


def inputs(rows: int, temperature: float, top_p: float, top_k: int) -> Sampling:
    transform = Transform(
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.full((rows,), top_k, dtype=torch.int32),
    )
    seeds = torch.arange(rows).to(torch.uint64)
    return Sampling(transform, seeds, torch.arange(rows, dtype=torch.int32))


@pytest.fixture
def logits() -> torch.Tensor:
    return 3.0 * torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(5))


def test_greedy_log_probs_are_zero_upstream_and_the_models_with_the_edit(
    trees: SimpleNamespace, logits: torch.Tensor
) -> None:
    greedy = inputs(40, GREEDY, 1.0, -1)
    before, _, tokens, *_ = trees.released(logits, greedy, 0)
    after, _, same, *_ = trees.edited(logits, greedy, 0)
    at = (torch.arange(40), tokens.long())
    assert before[at].abs().max() < 1e-6, "what upstream reports for every greedy token"
    assert torch.equal(tokens, same)
    assert torch.equal(after, torch.log_softmax(logits, dim=-1))
    assert after[at].max() < -1e-3


@pytest.mark.parametrize("temperature", [GREEDY, 0.7, 1.0, 3.0])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, -1), (0.6, -1), (1.0, 5), (0.9, 10)])
def test_the_choice_of_tokens_stays_what_it_was(
    temperature: float, top_p: float, top_k: int, trees: SimpleNamespace, logits: torch.Tensor
) -> None:
    given = inputs(40, temperature, top_p, top_k)
    kept = logits.clone()
    _, _, released, *_ = trees.released(logits, given, 0)
    log_probs, _, edited, *_ = trees.edited(logits, given, 0)
    assert torch.equal(released, edited)
    assert torch.equal(logits, kept)
    assert torch.isfinite(log_probs).all(), "nothing is cut out of what is reported"


def test_a_drafts_log_probs_stay_those_it_was_drawn_with(
    trees: SimpleNamespace, logits: torch.Tensor
) -> None:
    given = inputs(40, 0.5, 0.8, -1)
    buffers = torch.zeros(2, 40, VOCAB)
    trees.released(logits, given, 0, logprobs_out=buffers[0], tag="mtp")
    log_probs, *_ = trees.edited(logits, given, 0, logprobs_out=buffers[1], tag="mtp")
    assert torch.equal(buffers[0], buffers[1])
    assert torch.equal(log_probs, buffers[0])
    assert not torch.isfinite(log_probs).all()


def test_with_a_forced_top_k_they_are_of_those_k(
    trees: SimpleNamespace, logits: torch.Tensor
) -> None:
    log_probs, index, *_ = trees.edited(logits, inputs(40, GREEDY, 1.0, -1), 8)
    assert torch.equal(log_probs, torch.log_softmax(logits.gather(1, index), dim=-1))


def test_upstream_reports_these_log_probs_and_decides_nothing_by_them(
    trees: SimpleNamespace,
) -> None:
    tree = ast.parse(trees.sampler.read_text(encoding="utf-8"))
    users = {
        ast.unparse(call.func)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and any(isinstance(each, ast.Name) and each.id == "logprobs" for each in call.args)
    }
    assert users == {
        "map_lookup",  # of the token that was chosen
        "torch.gather",
        "topk",  # the best of them
        "self._prepare_top_info",
        "self._update_golden_tokens",
        "get_sum_smaller_probs",
    }
