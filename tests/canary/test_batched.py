"""The training path computes what the reference computes."""

from __future__ import annotations

import pytest
import torch

from h20_ops.formats import GROUP_RULES
from tests.v41 import tiny
from v41.canary.batched import TrainingModel
from v41.canary.stacked import stack_experts, unstack_experts
from v41.canary.straight import fp4_groups, fp4_groups_e4m3, fp8_blocks, fp8_groups
from v41.checkpoint.blocks import dequantise_blocks, quantise_blocks
from v41.model import Reference
from v41.numerics import Numerics, round_trip

pytestmark = pytest.mark.torch


def spread(seed: int) -> torch.Tensor:
    """Rows of very different size, one of them zero."""
    noise = torch.randn(64, 128, generator=torch.Generator().manual_seed(seed))
    rows = noise * torch.logspace(-4, 3, 64).unsqueeze(1)
    rows[3] = 0.0
    return rows


@pytest.mark.parametrize(
    ("fast", "rule"),
    [
        (fp8_groups, "fp8_32_ue8m0"),
        (fp4_groups, "fp4_32_ue8m0"),
        (fp4_groups_e4m3, "fp4_16_e4m3"),
    ],
)
def test_fast_roundings_give_the_same_bits(fast, rule: str) -> None:  # type: ignore[no-untyped-def]
    x = spread(0)
    assert torch.equal(fast(x), round_trip(x, GROUP_RULES[rule]))


def test_fast_weight_blocks_give_the_same_bits() -> None:
    x = spread(1)
    assert torch.equal(fp8_blocks(x), dequantise_blocks(*quantise_blocks(x, 32), 32))


def test_stacking_experts_and_unstacking_them_changes_nothing() -> None:
    weights = tiny.random_weights(tiny.CONFIG, 0)
    back = unstack_experts(stack_experts(tiny.CONFIG, weights))
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


@pytest.fixture(scope="module")
def both() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of training model and reference; more tokens than any top-k or window."""
    config, weights = tiny.CONFIG, tiny.random_weights(tiny.CONFIG, 0)
    tokens = torch.randint(0, 96, (2, 60), generator=torch.Generator().manual_seed(1))
    ids = tiny.compressed_ids(config)
    reference = Reference(config, weights, numerics=Numerics.of("exact"), compressed_ids=ids)
    stacked = stack_experts(config, weights)
    model = TrainingModel(config, stacked, compressed_ids=ids, mode="exact")
    with torch.no_grad():
        return model.logits(tokens), reference.extend(tokens, reference.new_cache())


def test_whole_sequences_give_the_references_logits(
    both: tuple[torch.Tensor, torch.Tensor],
) -> None:
    got, wanted = both
    assert float((got - wanted).norm() / wanted.norm()) < 1e-4
