"""FP4 and FP8 weights re-encoded for SM90: exact where possible, counted where not (F34, F36, F38)."""

from __future__ import annotations

import logging
import struct

import pytest
import torch

from h20_ops.errors import FormatError
from h20_ops.formats import decode_e2m1, decode_e4m3, decode_ue8m0, unpack_nibbles
from h20_ops.formats.reencode import reencode_fp4_as_fp8
from h20_ops.reblock import reblock_fp4, reblock_fp8
from h20_ops.requant import requant_dense_fp8, requant_expert_fp4
from h20_ops.requant_loss import DeviceLoss, total_loss

pytestmark = pytest.mark.torch


def expert(n: int, k: int, exponents: tuple[int, int], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    low, high = exponents
    scale = torch.randint(low, high + 1, (n, k // 32), generator=generator).to(torch.uint8)
    scale[0, 0], scale[n - 1, 3] = low, high  # both ends of the range inside the first block
    return packed, scale


def fp4_values(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    spread = decode_ue8m0(scale).double().repeat_interleave(32, dim=1)
    return decode_e2m1(unpack_nibbles(packed)).double() * spread


def fp8_values(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    block = values.shape[0] // scales.shape[0]
    spread = scales.double().repeat_interleave(block, 0).repeat_interleave(block, 1)
    return decode_e4m3(values.view(torch.uint8)).double() * spread


@pytest.mark.parametrize("spread", [0, 1, 7, 14])
def test_experts_are_exact_for_spreads_up_to_14(spread: int) -> None:
    packed, scale = expert(128, 256, (100, 100 + spread), seed=spread)
    values, scales = requant_expert_fp4(packed, scale, on_inexact="refuse")
    assert values.dtype == torch.float8_e4m3fn and values.shape == (128, 256)
    assert scales.dtype == torch.float32 and scales.shape == (1, 2) and scales.is_contiguous()
    assert torch.equal(fp8_values(values, scales), fp4_values(packed, scale))
    assert torch.equal(scales.view(torch.int32) & 0x7FFFFF, torch.zeros(1, 2, dtype=torch.int32))


def test_a_spread_of_15_is_counted_with_its_worst_error(caplog: pytest.LogCaptureFixture) -> None:
    packed, scale = expert(128, 128, (100, 115), seed=1)
    result = reblock_fp4(packed, scale)
    changed = fp8_values(result.values, result.scales) - fp4_values(packed, scale)
    assert result.loss.num_inexact == int((changed != 0).sum()) > 0
    assert result.loss.max_abs_error == float(changed.abs().max())
    assert result.loss.spread == 15
    with caplog.at_level(logging.WARNING):
        requant_expert_fp4(packed, scale, name="layers.3.ffn.experts.0.w1")
    assert "layers.3.ffn.experts.0.w1: lossy" in caplog.text
    with pytest.raises(FormatError, match="w1 is lossy"):
        requant_expert_fp4(packed, scale, name="w1", on_inexact="refuse")


@pytest.mark.parametrize("spread", [0, 9, 15, 18, 19, 20, 45])
def test_experts_agree_with_the_rule_written_as_arithmetic(spread: int) -> None:
    packed, scale = expert(256, 256, (90, 90 + spread), seed=spread)
    ours, rule = reblock_fp4(packed, scale), reencode_fp4_as_fp8(packed, scale)
    assert torch.equal(ours.values.view(torch.uint8), rule.values)
    assert torch.equal(ours.scales, rule.scales)
    assert ours.loss.num_inexact == rule.num_inexact
    assert ours.loss.max_abs_error == pytest.approx(rule.max_abs_error)


def test_the_low_nibble_is_the_even_column() -> None:
    packed = torch.zeros(128, 64, dtype=torch.uint8)
    packed[0, 0], packed[0, 1] = 0x21, 0xF0
    values, scales = requant_expert_fp4(packed, torch.full((128, 4), 127, dtype=torch.uint8))
    assert fp8_values(values, scales)[0, :4].tolist() == [0.5, 1.0, 0.0, -6.0]
    signed, _ = requant_expert_fp4(
        packed.view(torch.int8), torch.full((128, 4), 127, dtype=torch.uint8)
    )
    assert torch.equal(signed.view(torch.uint8), values.view(torch.uint8))


def dense(seed: int, spread: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (256, 384), dtype=torch.uint8, generator=generator)
    codes[(codes & 0x7F) == 0x7F] = 0x7E  # no NaN
    exponents = torch.randint(100, 101 + spread, (8, 12), generator=generator).to(torch.uint8)
    return codes.view(torch.float8_e4m3fn), exponents


@pytest.mark.parametrize("spread", [0, 1, 6, 12])
def test_dense_weights_change_only_far_below_the_largest_scale(spread: int) -> None:
    codes, exponents = dense(spread, spread)
    values, scales = requant_dense_fp8(codes, decode_ue8m0(exponents))
    before = fp8_values(codes, decode_ue8m0(exponents))
    after = fp8_values(values, scales)
    per_value = scales.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    changed = before != after
    assert bool(changed.any()) == (spread > 0)
    assert bool((before.abs()[changed] < 2.0**-6 * per_value[changed]).all())
    assert bool(((before - after).abs() <= 2.0**-10 * per_value).all())
    result = reblock_fp8(codes, exponents)
    assert result.loss.num_inexact == int(changed.sum())
    assert result.loss.max_abs_error == pytest.approx(float((before - after).abs().max()))
    assert torch.equal(result.values.view(torch.uint8), values.view(torch.uint8))


def test_exponent_bytes_copied_as_numbers_are_refused() -> None:
    codes, exponents = dense(3, 4)
    with pytest.raises(FormatError, match="120"):
        requant_dense_fp8(codes, torch.full((8, 12), 120.0), name="layers.0.attn.wkv")
    with pytest.raises(FormatError, match="powers of two"):
        requant_dense_fp8(codes, torch.zeros(8, 12))
    exponents[2, 2] = 255
    with pytest.raises(FormatError, match="NaN"):
        requant_dense_fp8(codes, exponents)
    exponents[2, 2] = 254
    with pytest.raises(FormatError, match=r"2\^±127"):
        requant_dense_fp8(codes, exponents, name="layers.0.attn.wkv")


def test_blocks_of_zeros_with_the_smallest_scale_are_exact() -> None:
    codes, exponents = dense(8, 0)
    codes.view(torch.uint8)[:32, :32] = 0
    exponents[0, 0] = 0
    for scale in (exponents, decode_ue8m0(exponents)):
        values, scales = requant_dense_fp8(codes, scale, on_inexact="refuse")
        assert torch.equal(fp8_values(values, scales), fp8_values(codes, decode_ue8m0(exponents)))


def test_ragged_sizes_are_refused_by_name() -> None:
    packed, scale = torch.zeros(192, 64, dtype=torch.uint8), torch.zeros(192, 4, dtype=torch.uint8)
    with pytest.raises(FormatError, match="odd one has 192 rows and 128 columns"):
        requant_expert_fp4(packed, scale, name="odd one")


def test_nan_codes_of_dense_weights_stay_nan() -> None:
    codes, exponents = dense(4, 3)
    codes.view(torch.uint8)[7, 9] = 0xFF
    values, _ = requant_dense_fp8(codes, exponents)
    assert values.view(torch.uint8)[7, 9] == 0xFF


def test_losses_add_up() -> None:
    exact = reblock_fp4(*expert(128, 128, (100, 110), seed=5)).loss
    lossy = reblock_fp4(*expert(128, 128, (100, 117), seed=6)).loss
    both = total_loss([exact, lossy])
    assert both.num_values == 2 * 128 * 128
    assert (both.num_inexact, both.max_abs_error) == (lossy.num_inexact, lossy.max_abs_error)
    assert both.spread == 17
    assert "lossy" in str(both) and "exact" in str(total_loss([]))


def test_leading_dimensions_are_converted_one_by_one() -> None:
    packed, scale = expert(384, 256, (100, 118), seed=7)
    together = reblock_fp4(packed.view(3, 128, 128), scale.view(3, 128, 8))
    assert together.values.shape == (3, 128, 256) and together.scales.shape == (3, 1, 2)
    codes, exponents = dense(7, 3)
    dense_together = reblock_fp8(codes.view(2, 128, 384), exponents.view(2, 4, 12))
    for part in range(3):
        alone = reblock_fp4(packed.view(3, 128, 128)[part], scale.view(3, 128, 8)[part])
        assert torch.equal(together.values[part].view(torch.uint8), alone.values.view(torch.uint8))
        assert torch.equal(together.scales[part], alone.scales)
    alone = reblock_fp8(codes, exponents)
    assert torch.equal(dense_together.scales.flatten(0, 1), alone.scales)
    assert dense_together.loss == alone.loss


def test_counters_of_a_gpu_are_read_in_the_order_of_the_kernels_structure() -> None:
    scale = torch.full((128, 4), 127, dtype=torch.uint8)
    counted = DeviceLoss(num_values=16384, scale=scale, name="w1")
    assert counted.read().is_exact
    written = struct.pack("=QfII12x", 2**40, 0.375, 3, 0) + bytes(62 * 32)
    written += struct.pack("=QfII12x", 3, 0.25, 17, 0)
    counted.counters.copy_(torch.frombuffer(bytearray(written), dtype=torch.uint8))
    loss = counted.read()
    assert (loss.num_inexact, loss.max_abs_error, loss.spread) == (2**40 + 3, 0.375, 17)


def test_a_bad_scale_that_a_gpu_counted_is_named_as_the_cpu_names_it() -> None:
    scale = torch.full((128, 4), 127, dtype=torch.uint8)
    counted = DeviceLoss(num_values=16384, scale=scale, name="w1")
    written = bytes(5 * 32) + struct.pack("=QfII12x", 0, 0.0, 0, 1) + bytes(58 * 32)
    counted.counters.copy_(torch.frombuffer(bytearray(written), dtype=torch.uint8))
    with pytest.raises(FormatError, match="scales of w1 had changed"):
        counted.read()
    scale[5, 2] = 255
    with pytest.raises(FormatError, match="w1 holds 1 scale byte"):
        counted.read()
