"""Each kind is compared in its own way."""

from __future__ import annotations

import pytest
import torch

from dih20.parity.compare.choices import (
    as_mask,
    expert_distance,
    integer_distance,
    selection_distance,
)
from dih20.parity.compare.dense import dense_distance, max_ulp
from dih20.parity.compare.quantised import code_details, values_of_codes
from h20_ops.formats import GROUP_RULES, dequantise_groups, quantise_groups

pytestmark = pytest.mark.torch


def in_pieces(
    a: torch.Tensor, b: torch.Tensor, size: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(a.flatten().split(size), b.flatten().split(size), strict=True))


@pytest.mark.parametrize("size", [7, 64, 10_000])
def test_dense_distance_does_not_depend_on_the_pieces(size: int) -> None:
    torch.manual_seed(1)
    a = torch.randn(5, 8, 16)
    b = a + 1e-3 * torch.randn_like(a)
    b[3, 2, 9] += 0.5
    found = dense_distance(in_pieces(a, b, size), (5, 8, 16))
    want = float(1 - 2 * (a * b).double().sum() / (a.double() ** 2 + b.double() ** 2).sum())
    assert found.normalised == pytest.approx(want, rel=1e-4)
    assert found.coordinate == (3, 2, 9)
    assert (found.a, found.b) == (float(a[3, 2, 9]), float(b[3, 2, 9]))


def test_an_infinity_that_agrees_is_left_out_and_one_that_does_not_makes_nan() -> None:
    a = torch.tensor([1.0, float("-inf"), 2.0])
    assert dense_distance([(a, a.clone())], (3,)).normalised == 0.0
    b = torch.tensor([1.0, 5.0, 2.0])
    found = dense_distance([(a, b)], (3,))
    assert found.normalised != found.normalised
    assert found.coordinate == (1,)


def test_nan_on_both_sides_is_counted() -> None:
    a = torch.tensor([1.0, float("nan")])
    assert dense_distance([(a, a.clone())], (2,)).nan_both == 1


def test_values_beyond_fp32_squares_are_measured() -> None:
    a = torch.full((10,), 5e33)
    assert dense_distance([(a, a * 1.01)], (10,)).normalised == pytest.approx(4.95e-5, rel=1e-2)


def test_ulps_are_steps_of_the_coarser_dtype_and_cross_zero() -> None:
    one = torch.tensor([1.0])
    assert max_ulp(one, torch.nextafter(one, torch.tensor([2.0]))) == 1
    assert max_ulp(one.bfloat16(), torch.tensor([1.0078125]).bfloat16()) == 1
    assert max_ulp(torch.tensor([1e-45]), torch.tensor([-1e-45])) == 2


@pytest.mark.parametrize("name", ["fp8_32_ue8m0", "fp4_16_e4m3", "fp4_32_ue8m0"])
def test_codes_scales_and_values_are_told_apart(name: str) -> None:
    rule = GROUP_RULES[name]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    codes, scales = quantise_groups(x, rule)
    a = dequantise_groups(codes, scales, rule)
    steps = {"values_beyond_one_step": 0} if rule.values == "e2m1" else {}
    assert code_details(a, a.clone(), name) == {
        "format": name, "codes_differ": 0.0, "scales_differ": 0.0, **steps,
    }  # fmt: skip
    if rule.scale == "ue8m0":
        details = code_details(a, a * 4, name)
        assert (details["codes_differ"], details["scales_differ"]) == (0.0, 1.0)
        assert details["scale_log2_ratio"] == 2.0
    flipped = a.clone()
    flipped[1, 5] = -flipped[1, 5]
    details = code_details(a, flipped, name)
    assert details["scales_differ"] == 0.0
    assert details["codes_differ"] == pytest.approx(1 / codes.numel())
    assert details.get("values_beyond_one_step", 1) == 1
    assert torch.equal(values_of_codes(codes, scales, name), a)


def test_a_value_at_most_one_fp4_step_away_is_a_neighbour_also_across_an_exponent() -> None:
    """A group's 6 may become 8, for which its exponent is the next one."""
    a = torch.zeros(1, 64)
    a[0, :3] = torch.tensor([6.0, 0.5, 3.0])
    a[0, 32:34] = torch.tensor([6.0, 2.0])
    b = a.clone()
    b[0, :3] = torch.tensor([8.0, 1.0, 3.0 + 1.0])
    details = code_details(a, b, "fp4_32_ue8m0")
    assert (details["scales_differ"], details["values_beyond_one_step"]) == (0.5, 0)
    b[0, 33] = 4.0  # two steps of the group's grid
    assert code_details(a, b, "fp4_32_ue8m0")["values_beyond_one_step"] == 1


def test_a_group_whose_largest_code_was_3_is_judged_by_the_grid_it_was_stored_on() -> None:
    """1 and 0.5 are neighbours there, and look like 2 and 1 when the group is quantised again."""
    a = torch.zeros(1, 32)
    a[0, :2] = torch.tensor([3.0, 1.0])
    b = a.clone()
    b[0, 1] = 0.5
    assert code_details(a, b, "fp4_32_ue8m0")["values_beyond_one_step"] == 0
    a[0, 2] = b[0, 2] = 0.25  # only the finer grid has it
    assert code_details(a, b, "fp4_32_ue8m0")["values_beyond_one_step"] == 1


def test_values_that_the_format_cannot_hold_are_said_to_be() -> None:
    details = code_details(torch.zeros(2, 32), torch.full((2, 32), 0.123456), "fp8_32_ue8m0")
    assert "B's values are not ones that fp8_32_ue8m0 holds" in str(details["codes"])


def selections(scores: torch.Tensor, k: int) -> torch.Tensor:
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)


def test_300_equal_scores_across_the_cut_are_tie_equivalent() -> None:
    scores = torch.rand(1, 3, 4096, generator=torch.Generator().manual_seed(0))
    scores[..., 400:700] = 2.0
    above = torch.full((1, 3, 4096), False)
    above[..., 700:1100] = True
    scores = torch.where(above, scores + 3.0, scores)  # 400 above the 300 equal ones, k = 512
    a, b = selections(scores, 512), selections(scores.flip(-1), 512).flip(-1)
    assert not torch.equal(a, b)
    found = selection_distance(a, b, scores, near_tie=0.02)
    assert found.value == 0.0
    assert found.details["rows_tied"] == 3
    assert "tie-equivalent" in found.remark


def test_a_worse_entry_is_not_a_tie_and_the_margin_says_by_how_much() -> None:
    scores = torch.tensor([[[5.0, 4.0, 3.0, 0.0]]])
    a = torch.tensor([[[True, True, False, False]]])
    b = torch.tensor([[[True, False, False, True]]])
    found = selection_distance(a, b, scores, near_tie=0.02)
    assert found.value == 1.0
    assert found.details["score_margin"] == 4.0
    assert found.coordinate == (0, 0, 1)


def test_another_number_of_entries_is_never_a_tie() -> None:
    scores = torch.zeros(1, 1, 4)
    a = torch.tensor([[[True, True, False, False]]])
    b = torch.tensor([[[True, False, False, False]]])
    assert selection_distance(a, b, scores, near_tie=0.02).value == 1.0


def test_index_lists_and_masks_of_one_selection_are_equal() -> None:
    mask = as_mask(torch.tensor([[[3, 0, -1, -1]]], dtype=torch.int32), 5)
    assert mask.tolist() == [[[True, False, False, True, False]]]


def test_experts_in_another_order_are_the_same_experts() -> None:
    a = torch.tensor([[0, 3], [1, 2]])
    found = expert_distance(a, torch.tensor([[3, 0], [1, 2]]))
    assert (found.value, found.details["rows_other_order"]) == (0.0, 1)
    assert expert_distance(a, torch.tensor([[0, 3], [1, 4]])).value == 0.5


def test_experts_whose_scores_tie_are_as_good_as_each_other() -> None:
    a = torch.tensor([[0, 3], [1, 2], [0, 1]])
    b = torch.tensor([[0, 2], [1, 2], [0, 4]])
    scores = torch.tensor([[1.0, 0.1, 0.5, 0.5 + 8e-6, 0.0]]).repeat(3, 1)
    found = expert_distance(a, b, scores, tie=1e-5)
    assert found.value == pytest.approx(1 / 3)
    assert (found.details["rows_differ"], found.details["rows_tied"]) == (2, 1)
    assert found.coordinate[0] == 2  # the row that no tie explains
    assert expert_distance(a, b, scores, tie=1e-6).value == pytest.approx(2 / 3)
    tied = expert_distance(a[:2], b[:2], scores[:2], tie=1e-5)
    assert tied.value == 0.0 and tied.remark.startswith("tie-equivalent")
    twice = torch.tensor([[0, 0]])
    assert expert_distance(a[:1], twice, scores[:1], tie=1e-5).value == 1.0


def test_integers_are_compared_exactly() -> None:
    a = torch.arange(8).view(2, 4)
    assert integer_distance(a, a.clone()).value == 0.0
    b = a.clone()
    b[1, 2] = 99
    assert integer_distance(a, b).coordinate == (1, 2)
