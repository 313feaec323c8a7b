"""Scale rules: clamps, rounding up, and codes computed by hand for each rule."""

from __future__ import annotations

import pytest
import torch

from h20_ops.formats import GROUP_RULES, decode_e4m3, dequantise_groups, quantise_groups
from h20_ops.testing.byte_writer import write_288, write_528

pytestmark = pytest.mark.torch


def row_of(rule: str, *values: float) -> torch.Tensor:
    row = torch.zeros(GROUP_RULES[rule].group)
    row[: len(values)] = torch.tensor(values)
    return row


@pytest.mark.parametrize(
    ("amax", "exponent"),
    [
        (448.0, 127),  # an exact power of two stays
        (448.0001, 128),
        (447.0, 127),
        (224.0, 126),
        (1.0, 127 - 8),  # 1/448 is between 2^-9 and 2^-8
        (1e-4, 127 - 22),
        (1e-9, 127 - 22),  # clamped at 1e-4
        (0.0, 127 - 22),
    ],
)
def test_fp8_exponents_round_up_and_small_groups_are_clamped(amax: float, exponent: int) -> None:
    _, scales = quantise_groups(row_of("fp8_32_ue8m0", amax), GROUP_RULES["fp8_32_ue8m0"])
    assert scales.tolist() == [exponent]


def test_fp8_codes_are_the_values_over_the_power_of_two() -> None:
    row = row_of("fp8_32_ue8m0", 1.0, -0.5, 0.3, 3.0)
    codes, scales = quantise_groups(row, GROUP_RULES["fp8_32_ue8m0"])
    assert scales.tolist() == [127 - 7]  # 3 / 448 = 0.0067 <= 2^-7
    # times 128: 128, -64, 38.4 -> 40 (step 4 from 32 to 64), 384
    assert codes[:4].tolist() == [0x70, 0xE8, 0x62, 0x7C]


@pytest.mark.parametrize(
    ("amax", "exponent"),
    [(6.0, 127), (6.0001, 128), (3.0, 126), (0.0, 1), (2.0**-140, 1)],
)
def test_mxfp4_exponents_round_up_and_clamp_at_the_smallest_normal(
    amax: float, exponent: int
) -> None:
    _, scales = quantise_groups(row_of("fp4_32_ue8m0", amax), GROUP_RULES["fp4_32_ue8m0"])
    assert scales.tolist() == [exponent]


@pytest.mark.parametrize(
    ("amax", "scale"),
    [
        (6.0, 1.0),
        (6.3, 1.0),  # 1.05 rounds to 1
        (6.5, 1.125),
        (0.0, 2.0**-9),
        (6.0 * 2.0**-10, 2.0**-9),
        (1e6, 448.0),
    ],
)
@pytest.mark.parametrize("rule", ["fp4_16_e4m3", "fp4_16_e4m3_divide"])
def test_kv_fp4_scales_are_linear_e4m3_within_their_clamps(
    rule: str, amax: float, scale: float
) -> None:
    _, scales = quantise_groups(row_of(rule, amax), GROUP_RULES[rule])
    assert decode_e4m3(scales).tolist() == [scale]


def test_kv_fp4_codes_saturate_where_the_scale_rounded_down() -> None:
    row = row_of("fp4_16_e4m3", 6.3, -6.3, 1.0, 0.25)
    codes, _ = quantise_groups(row, GROUP_RULES["fp4_16_e4m3"])
    assert codes.tolist() == [0xF7, 0x02, 0, 0, 0, 0, 0, 0]


def test_reciprocals_and_division_part_on_some_ties_only() -> None:
    """DeepInfer multiplies by fp32 reciprocals; a store test must use the same rule."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn((4096, 16), generator=generator).to(torch.bfloat16)
    engine, _ = quantise_groups(x, GROUP_RULES["fp4_16_e4m3"])
    divided, _ = quantise_groups(x, GROUP_RULES["fp4_16_e4m3_divide"])
    share = (engine != divided).float().mean().item()
    assert 0 < share < 0.02


def test_fp32_power_of_two_scales_equal_the_byte_form() -> None:
    x = torch.randn((8, 128), generator=torch.Generator().manual_seed(6))
    codes, scales = quantise_groups(x, GROUP_RULES["fp8_128_pow2"])
    raw_codes, raw = quantise_groups(x, GROUP_RULES["fp8_128_fp32"])
    assert bool((torch.frexp(scales).mantissa == 0.5).all())
    assert bool((scales >= raw).all()) and bool((scales < 2 * raw).all())
    assert not codes.equal(raw_codes)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_cache_rules_agree_with_a_writer_that_shares_no_code(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((6, 512), generator=generator) * 2.0 ** torch.arange(-14, 16, 5).unsqueeze(1)
    x[0, 64:96] = 0.0
    x = x.to(torch.bfloat16)
    for rule, write, width in (("fp8_32_ue8m0", write_528, 528), ("fp4_16_e4m3", write_288, 288)):
        memory = bytearray(6 * width)
        for slot in range(6):
            write(memory, 0, slot, x[slot].double().tolist())
        want = torch.frombuffer(memory, dtype=torch.uint8).view(6, width)
        codes, scales = quantise_groups(x, GROUP_RULES[rule])
        assert torch.cat((codes, scales), dim=1).equal(want), rule


@pytest.mark.parametrize("name", sorted(GROUP_RULES))
def test_values_a_rule_can_hold_come_back_exactly(name: str) -> None:
    rule = GROUP_RULES[name]
    exact = [rule.max_value, -rule.max_value, 0.5, 1.0, -2.0, 0.0]
    row = row_of(name, *exact)
    codes, scales = quantise_groups(row, rule)
    assert dequantise_groups(codes, scales, rule).equal(row)
