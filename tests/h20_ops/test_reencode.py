"""FP4 to FP8 re-encoding: exact within a spread of 2^14, and honest beyond it (case F36)."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from h20_ops.formats import decode_e2m1, decode_e4m3, reencode_fp4_as_fp8

pytestmark = pytest.mark.torch


def block_with_spread(spread: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A 128 x 128 block of all sixteen codes; exponents are 2^0 but for one group, 2^-spread."""
    packed = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 8, dtype=torch.uint8)
    exponents = torch.full((128, 4), 127, dtype=torch.uint8)
    exponents[5, 2] = 127 - spread
    return packed.repeat(128, 1), exponents


@pytest.mark.parametrize("spread", [0, 1, 7, 14])
def test_a_spread_up_to_14_is_bit_exact(spread: int) -> None:
    packed, exponents = block_with_spread(spread)
    made = reencode_fp4_as_fp8(packed, exponents)
    assert made.is_exact and str(made).startswith("exact")
    assert made.scales.tolist() == [[2.0**-6]]
    codes = torch.arange(16, dtype=torch.uint8).repeat(128, 8)
    factor = torch.ones(128, 128)
    factor[5, 64:96] = 2.0**-spread
    assert (decode_e4m3(made.values) * 2.0**-6).equal(decode_e2m1(codes) * factor)


def test_a_spread_of_15_is_counted_and_measured() -> None:
    packed, exponents = block_with_spread(15)
    made = reencode_fp4_as_fp8(packed, exponents)
    # Of 0.5, 1, 1.5, 2, 3, ... times 2^-9 only 0.5 and 1.5 need half of the smallest e4m3 step:
    # both signs, twice in the one group of 32.
    assert made.num_inexact == 2 * 2 * 2
    assert made.max_abs_error == 2.0**-16
    assert "lossy: 8 of 16384" in str(made)


def test_the_amax_rule_loses_bits_and_says_so() -> None:
    packed, exponents = block_with_spread(0)
    made = reencode_fp4_as_fp8(packed, exponents, scale_rule="amax_over_448")
    assert not made.is_exact
    assert made.max_abs_error == pytest.approx(0.143, abs=5e-4)
    assert "lossy" in str(made)
    assert float(decode_e4m3(made.values).abs().max()) == 448.0


def test_an_all_zero_block_stays_zero_and_finite() -> None:
    zero = torch.zeros((128, 64), dtype=torch.uint8)
    exponents = torch.zeros((128, 4), dtype=torch.uint8)
    rules: tuple[Literal["power_of_two", "amax_over_448"], ...] = ("power_of_two", "amax_over_448")
    for rule in rules:
        made = reencode_fp4_as_fp8(zero, exponents, scale_rule=rule)
        assert made.is_exact and not made.values.any() and bool(made.scales.isfinite().all())


def test_a_shape_that_is_no_multiple_of_the_block_is_a_mistake() -> None:
    packed, exponents = block_with_spread(0)
    with pytest.raises(AssertionError, match=r"\(100, 128\) is not a multiple of \(128, 128\)"):
        reencode_fp4_as_fp8(packed[:100], exponents[:100])
