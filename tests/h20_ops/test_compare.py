"""The comparison tools name the place and the size of what is wrong."""

from __future__ import annotations

import math

import pytest
import torch

from h20_ops.testing.compare import check_bitwise, check_close, normalised_difference
from h20_ops.testing.seeds import generator_for, seed_of
from h20_ops.testing.tolerances import TOLERANCES, Tolerance, tolerance

pytestmark = pytest.mark.torch

LOOSE = Tolerance(abs=1e-2, rel=1e-2, normalised=1e-3)


def test_the_normalised_difference_is_zero_two_or_in_between() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    assert normalised_difference(x, x) == 0.0
    assert normalised_difference(x, -x) == 2.0
    assert normalised_difference(x, 2 * x) == pytest.approx(1 - 4 / 5)
    assert normalised_difference(torch.zeros(3), torch.zeros(3)) == 0.0
    infinite = torch.tensor([math.inf, 1.0])
    assert normalised_difference(infinite, infinite) == 0.0


def test_an_element_passes_on_either_bound() -> None:
    want = torch.tensor([1e-6, 100.0])
    check_close("x", want + torch.tensor([5e-3, 0.5]), want, LOOSE)


def test_the_worst_coordinate_is_named_with_both_values_and_the_bound() -> None:
    want = torch.ones(4, 5)
    got = want.clone()
    got[1, 2] = 1.05
    got[3, 4] = 1.25
    with pytest.raises(AssertionError) as caught:
        check_close("out", got, want, LOOSE)
    message = str(caught.value)
    assert message.startswith("out: got 1.25, want 1.0 at (3, 4): abs error 2.500e-01")
    assert "2 of 20 elements are out" in message and "allowed abs 1.000e-02" in message


@pytest.mark.parametrize(
    ("got", "want"),
    [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (math.inf, -math.inf), (0.0, math.nan)],
)
def test_infinities_and_nan_must_agree(got: float, want: float) -> None:
    with pytest.raises(AssertionError, match=r"at \(1,\): infinities or NaN must agree"):
        check_close("lse", torch.tensor([1.0, got]), torch.tensor([1.0, want]), LOOSE)


def test_agreeing_infinities_and_nan_pass() -> None:
    x = torch.tensor([math.inf, -math.inf, 2.0])
    check_close("lse", x, x, LOOSE)
    check_close("lse", torch.tensor([math.nan]), torch.tensor([math.nan]), LOOSE)


def test_a_small_error_everywhere_fails_the_whole() -> None:
    want = torch.ones(1000)
    tight = Tolerance(abs=0.2, rel=0.2, normalised=1e-4)
    with pytest.raises(AssertionError, match=r"normalised difference 4\.5.*is over 1\.000e-04"):
        check_close("out", want * 1.1, want, tight)


def test_shapes_must_agree() -> None:
    with pytest.raises(AssertionError, match=r"shape \(2,\), want \(3,\)"):
        check_close("out", torch.zeros(2), torch.zeros(3), LOOSE)


def test_the_first_differing_byte_is_named() -> None:
    want = torch.arange(6, dtype=torch.int16).view(2, 3)
    got = want.clone()
    got[1, 1] = 4 + 256
    with pytest.raises(AssertionError) as caught:
        check_bitwise("cache", got, want)
    assert str(caught.value) == (
        "cache: first difference at byte 9 (element 4, coordinate (1, 1)): bytes 0x01 and 0x00, "
        "values 260 and 4; 1 of 12 bytes differ"
    )


def test_bitwise_tells_zeros_apart_and_takes_equal_nan() -> None:
    with pytest.raises(AssertionError, match="byte 3"):
        check_bitwise("zero", torch.tensor([-0.0]), torch.tensor([0.0]))
    nan = torch.tensor([math.nan])
    check_bitwise("nan", nan, nan.clone())


def test_the_operators_have_upstreams_tolerances() -> None:
    assert tolerance("mla_prefill.out") == Tolerance(abs=8e-4, rel=3.01 / 128, normalised=1e-5)
    assert tolerance("mla_decode.out") == Tolerance(abs=1e-3, rel=2.01 / 128, normalised=5e-6)
    assert tolerance("mla_decode.lse").rel == 8.01 / 65536
    assert tolerance("mla_prefill.amplified.out").normalised == 1e-5
    with pytest.raises(AssertionError, match=r"known: format\.bf16"):
        tolerance("mla_prefil.out")


@pytest.mark.parametrize("name", sorted(TOLERANCES))
def test_no_tolerance_lets_everything_through_by_accident(name: str) -> None:
    row = TOLERANCES[name]
    bounds_whole = row.normalised <= 1e-3
    bounds_elements = row.abs < 1 and row.rel < 1
    exempt = name == "mla_prefill.amplified.max_logits"  # upstream switches this check off
    assert bounds_whole or bounds_elements or exempt


def test_seeds_depend_on_the_name_only() -> None:
    assert seed_of("a") == seed_of("a") != seed_of("b")
    first, second = (torch.rand(3, generator=generator_for("a")) for _ in range(2))
    assert first.equal(second)
