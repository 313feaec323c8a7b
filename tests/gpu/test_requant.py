"""Re-encoding kernels on the GPU: the twin's bytes, scales and counts, and no look back at the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from h20_ops import reblock
from h20_ops.errors import FormatError
from h20_ops.formats import decode_ue8m0
from h20_ops.requant import requant_dense_fp8, requant_expert_fp4
from h20_ops.requant_loss import Reblocked
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.requant_cases import dense_case, expert_case, fp4_values, fp8_values
from h20_ops.torch_ref import reblock as twin

pytestmark = pytest.mark.gpu

Pair = tuple[torch.Tensor, torch.Tensor]
SHAPES = [(128, 128), (256, 640), (3, 384, 512), (2, 5, 128, 256)]
SPREADS = [0, 1, 7, 11, 12, 14, 15, 18, 20, 45, 110]


def check_same(ours: Reblocked, twins: Reblocked) -> None:
    """Bytes, scales and all that is counted."""
    check_bitwise("values", ours.values.cpu(), twins.values.cpu())
    check_bitwise("scales", ours.scales.cpu(), twins.scales.cpu())
    assert ours.loss == twins.loss
    assert ours.values.is_contiguous() and ours.scales.is_contiguous()


def on_cpu(pair: Pair) -> Pair:
    return pair[0].cpu(), pair[1].cpu()


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_experts_equal_the_twin_bit_for_bit(shape: tuple[int, ...], spread: int) -> None:
    case = expert_case(shape, spread)
    ours = reblock.reblock_fp4(*case)
    check_same(ours, twin.reblock_fp4(*on_cpu(case)))
    assert ours.loss.spread == spread and ours.loss.is_exact == (spread <= 14)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", ["fp32", "bytes"])
def test_dense_weights_equal_the_twin_bit_for_bit(
    shape: tuple[int, ...], spread: int, form: str
) -> None:
    codes, exponents = dense_case(shape, spread)
    scale = decode_ue8m0(exponents) if form == "fp32" else exponents
    ours = reblock.reblock_fp8(codes, scale)
    check_same(ours, twin.reblock_fp8(codes.cpu(), scale.cpu()))
    assert ours.loss.is_exact == (spread == 0)


@pytest.mark.parametrize("spread", [0, 7, 14])
def test_experts_keep_every_value_up_to_a_spread_of_14(spread: int) -> None:
    case = expert_case((512, 1024), spread)
    values, scales = requant_expert_fp4(*case, on_inexact="refuse")
    check_bitwise("values", fp8_values(values, scales), fp4_values(*case))
    assert not bool((scales.view(torch.int32) & 0x7FFFFF).any()), "a scale is no power of two"


@pytest.mark.parametrize("shape", [(4608, 5120), (5120, 2304)], ids=str)
def test_matrices_of_the_models_sizes_equal_the_twin(shape: tuple[int, int]) -> None:
    expert = expert_case(shape, 9)
    check_same(reblock.reblock_fp4(*expert), twin.reblock_fp4(*on_cpu(expert)))
    dense = dense_case(shape, 3)
    check_same(reblock.reblock_fp8(*dense), twin.reblock_fp8(*on_cpu(dense)))


def test_many_experts_in_one_call_are_each_what_one_call_gives() -> None:
    packed, exponents = expert_case((5, 256, 384), 20)
    together = reblock.reblock_fp4(packed, exponents)
    losses = []
    for expert in range(5):
        alone = reblock.reblock_fp4(packed[expert], exponents[expert])
        check_bitwise(f"values of {expert}", alone.values, together.values[expert])
        check_bitwise(f"scales of {expert}", alone.scales, together.scales[expert])
        losses.append(alone.loss)
    assert together.loss.num_inexact == sum(loss.num_inexact for loss in losses) > 0
    assert together.loss.max_abs_error == max(loss.max_abs_error for loss in losses)


def test_scale_types_of_a_checkpoint_are_bytes_and_not_numbers() -> None:
    packed, exponents = expert_case((256, 256), 6)
    want = reblock.reblock_fp4(packed, exponents)
    for dtype in (torch.int8, torch.float8_e8m0fnu):
        check_same(reblock.reblock_fp4(packed.view(torch.int8), exponents.view(dtype)), want)
    codes, exponents = dense_case((256, 256), 3)
    want = reblock.reblock_fp8(codes, exponents)
    for scale in (exponents.view(torch.float8_e8m0fnu), decode_ue8m0(exponents)):
        check_same(reblock.reblock_fp8(codes.view(torch.uint8), scale), want)


BAD: dict[str, tuple[Callable[[], Reblocked], str]] = {}


def bad(match: str) -> Callable[[Callable[[], Reblocked]], Callable[[], Reblocked]]:
    def add(make: Callable[[], Reblocked]) -> Callable[[], Reblocked]:
        BAD[make.__name__] = (make, match)
        return make

    return add


@bad("255, which is NaN")
def expert_nan() -> Reblocked:
    packed, exponents = expert_case((256, 256), 3)
    exponents[200, 5] = 255
    result = reblock.reblock_fp4(packed, exponents)
    assert bool(result.scales[1, 1].isnan()) and int(result.scales.isnan().sum()) == 1
    return result


@bad(r"2\^±127")
def expert_of_254() -> Reblocked:
    packed, exponents = expert_case((256, 256), 3)
    exponents[0, 0] = 254
    return reblock.reblock_fp4(packed, exponents)


@bad(r"2\^±61")
def expert_of_66() -> Reblocked:
    packed, exponents = expert_case((256, 256), 3)
    exponents[255, 7] = 66
    return reblock.reblock_fp4(packed, exponents)


@bad("255, which is NaN")
def dense_nan_byte() -> Reblocked:
    codes, exponents = dense_case((256, 256), 3)
    exponents[7, 7] = 255
    return reblock.reblock_fp8(codes, exponents)


@bad("holds 120")
def dense_bytes_as_numbers() -> Reblocked:
    codes, exponents = dense_case((256, 256), 3)
    return reblock.reblock_fp8(codes, torch.full_like(exponents, 120).float())


@bad("powers of two")
def dense_of_zero() -> Reblocked:
    codes, exponents = dense_case((256, 256), 3)
    scale = decode_ue8m0(exponents)
    scale[4, 4] = 0.0
    return reblock.reblock_fp8(codes, scale)


@bad("powers of two")
def dense_negative() -> Reblocked:
    codes, exponents = dense_case((256, 256), 3)
    scale = decode_ue8m0(exponents)
    scale[0, 7] = -0.5
    return reblock.reblock_fp8(codes, scale)


@pytest.mark.parametrize("name", sorted(BAD))
def test_scales_that_no_weight_should_have_are_refused_where_the_loss_is_read(name: str) -> None:
    make, match = BAD[name]
    result = make()
    with pytest.raises(FormatError, match=match):
        print(result.loss)


def test_the_lowest_exponent_marks_an_empty_group_and_not_a_spread() -> None:
    packed, exponents = expert_case((128, 256), 4)
    packed[5, :16], exponents[5, 0] = 0, 0
    ours = reblock.reblock_fp4(packed, exponents)
    check_same(ours, twin.reblock_fp4(packed.cpu(), exponents.cpu()))
    assert ours.loss.is_exact and ours.loss.spread == 4
    nothing = torch.zeros_like(packed), torch.zeros_like(exponents)
    check_same(reblock.reblock_fp4(*nothing), twin.reblock_fp4(*on_cpu(nothing)))
    codes, exponents = dense_case((128, 128), 0)
    for scale in (torch.zeros_like(exponents), decode_ue8m0(torch.zeros_like(exponents))):
        check_same(reblock.reblock_fp8(codes, scale), twin.reblock_fp8(codes.cpu(), scale.cpu()))


def test_strided_and_unaligned_tensors_give_the_same() -> None:
    packed, exponents = expert_case((256, 512), 8)
    want = reblock.reblock_fp4(packed, exponents)
    wide = torch.zeros((256, 300), dtype=torch.uint8, device="cuda")
    wide[:, 7:263] = packed
    shifted = torch.zeros(exponents.numel() + 3, dtype=torch.uint8, device="cuda")[3:]
    shifted = shifted.view(exponents.shape).copy_(exponents)
    check_same(reblock.reblock_fp4(wide[:, 7:263], shifted), want)


def test_nothing_is_read_back_before_the_loss_is_asked_for() -> None:
    expert, dense = expert_case((256, 256), 20), dense_case((256, 256), 5)
    reblock.reblock_fp4(*expert), reblock.reblock_fp8(*dense)  # loads the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [reblock.reblock_fp4(*expert), reblock.reblock_fp8(*dense)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(result.loss.num_inexact > 0 for result in results)


def test_both_run_inside_a_captured_graph_and_count_again_at_each_replay() -> None:
    packed, exponents = expert_case((256, 384), 4)
    codes, scale = dense_case((256, 384), 4)
    reblock.reblock_fp4(packed, exponents), reblock.reblock_fp8(codes, scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        expert, dense = reblock.reblock_fp4(packed, exponents), reblock.reblock_fp8(codes, scale)
    other, other_scale = expert_case((256, 384), 18)
    packed.copy_(other), exponents.copy_(other_scale)
    codes.view(torch.uint8).copy_(dense_case((256, 384), 7)[0].view(torch.uint8))
    graph.replay()
    graph.replay()
    check_same(expert, twin.reblock_fp4(packed.cpu(), exponents.cpu()))
    check_same(dense, twin.reblock_fp8(codes.cpu(), scale.cpu()))


def test_a_loss_is_refused_or_reported_as_asked(caplog: pytest.LogCaptureFixture) -> None:
    case = expert_case((128, 128), 16)
    with pytest.raises(FormatError, match="w1 is lossy"):
        requant_expert_fp4(*case, name="w1", on_inexact="refuse")
    requant_expert_fp4(*case, name="layers.3.ffn.experts.0.w1")
    assert "layers.3.ffn.experts.0.w1: lossy" in caplog.text
    codes, exponents = dense_case((128, 128), 2)
    values, _ = requant_dense_fp8(codes, decode_ue8m0(exponents))
    marks = (codes.view(torch.uint8) & 0x7F) == 0x7F
    assert bool(marks.any()), "the case has NaN codes"
    check_bitwise("NaN codes", values.view(torch.uint8)[marks], codes.view(torch.uint8)[marks])


def test_no_rows_and_ragged_ones_launch_nothing() -> None:
    packed, exponents = expert_case((128, 128), 0)
    empty = reblock.reblock_fp4(packed[:0], exponents[:0])
    assert empty.values.shape == (0, 128) and empty.loss.num_values == 0
    with pytest.raises(FormatError, match="64 rows and 128 columns"):
        reblock.reblock_fp4(packed[:64], exponents[:64])


def test_a_wrong_byte_would_be_seen() -> None:
    case = expert_case((128, 128), 3)
    ours = reblock.reblock_fp4(*case)
    ours.values.view(torch.uint8)[77, 99] ^= 1
    with pytest.raises(AssertionError, match=r"coordinate \(77, 99\)"):
        check_same(ours, twin.reblock_fp4(*on_cpu(case)))
