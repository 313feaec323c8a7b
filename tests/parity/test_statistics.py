"""Statistics and sketches: what they say without the tensor must be true of the tensor."""

from __future__ import annotations

import pytest
import torch

from dih20.parity.statistics import SEGMENTS, describe, estimate_difference, worst_segment

pytestmark = pytest.mark.torch


def normalised(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).square().sum() / (a.square().sum() + b.square().sum()))


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("shape", [(3, 50, 128), (1, 40, 4, 33), (700,), (5,)])
def test_the_sketch_estimates_the_difference(size: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a = torch.randn(shape)
    b = a + size * torch.randn(shape)
    estimate = estimate_difference(describe(a)[1], describe(b)[1])
    assert 0.6 < estimate / normalised(a, b) < 1.6


def test_a_single_wrong_row_is_found_and_placed() -> None:
    a = torch.randn(1, 640, 64, generator=torch.Generator().manual_seed(0))
    b = a.clone()
    b[0, 105] = 0.0
    sketches = describe(a)[1], describe(b)[1]
    assert 0.3 < estimate_difference(*sketches) / normalised(a, b) < 3.0
    assert worst_segment(*sketches) == 105 * SEGMENTS // 640


def test_equal_digests_mean_equal_tensors_and_order_counts() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    swapped = x.clone()
    swapped[[0, 1]] = x[[1, 0]]
    nudged = x.clone()
    nudged[63, 31] = torch.nextafter(nudged[63, 31], torch.tensor(torch.inf))
    digests = [describe(t)[0].digest for t in (x, x.clone(), swapped, nudged, x.flip(1))]
    assert digests[0] == digests[1]
    assert len(set(digests[1:])) == 4


def test_numbers_are_over_the_finite_elements() -> None:
    x = torch.tensor([1.0, -3.0, float("nan"), float("inf"), 2.0])
    statistics, sketch = describe(x)
    assert (statistics.nan, statistics.inf, statistics.count) == (1, 1, 5)
    assert (statistics.minimum, statistics.maximum) == (-3.0, 2.0)
    assert statistics.mean == pytest.approx(0.0)
    assert statistics.rms == pytest.approx((14 / 3) ** 0.5)
    assert bool(sketch.isfinite().all())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([True, False, True]),
        torch.arange(-3, 9).view(3, 4),
        torch.full((4, 8), 5e33),
        torch.zeros(0, 7),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.full((2,), float("nan")),
    ],
    ids=["bool", "int64", "huge", "empty", "bf16", "all-nan"],
)
def test_every_kind_of_tensor_has_statistics(tensor: torch.Tensor) -> None:
    statistics, sketch = describe(tensor)
    assert statistics.count == tensor.numel()
    assert bool(sketch.isfinite().all())
