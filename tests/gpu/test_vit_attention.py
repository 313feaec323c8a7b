"""The vision tower's attention on the GPU: each image by itself, and nothing read on the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from h20_ops.errors import UnsupportedError
from h20_ops.testing.compare import check_bitwise, normalised_difference
from h20_ops.testing.vit_cases import SPEED_LENGTHS, VitInputs, image_by_image, vit_case
from h20_ops.torch_ref.vit_attention import vit_attention as twin
from h20_ops.vit_attention import vit_attention

pytestmark = pytest.mark.gpu

# Rounding to bf16 moves a number by at most 2^-8 of it: probabilities once, and the result. A tenth more
# for the fp32 sums of logits and of products.
BF16_STEP = 1.1 * 2.0**-8
WHOLE = 1e-5
LENGTHS = [(1,), (63, 64), (64, 65), (1, 63, 64, 65, 200, 7, 30), (9216, 1, 64, 65), (17,) * 64]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """What we compare with multiplies in fp32 and not in tf32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def check_images(out: torch.Tensor, x: VitInputs) -> None:
    """Every element within what rounding explains, and the whole within WHOLE."""
    want, summed = image_by_image(x)
    share = (out.float() - want).abs() / (BF16_STEP * (summed + want.abs()) + 1e-6)
    worst = int(share.argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), share.shape))
    assert float(share.max()) <= 1.0, (
        f"out: got {float(out[at])}, want {float(want[at])} at {at}: {float(share[at]):.2f} times "
        f"the bound, {int((share > 1).sum())} of {share.numel()} elements are out"
    )
    difference = normalised_difference(out, want)
    assert difference <= WHOLE, f"out: normalised difference {difference:.2e}"


def attend(x: VitInputs) -> torch.Tensor:
    (out,) = vit_attention(x.q, x.k, x.v, **x.kwargs())  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}x{max(lengths)}")
def test_each_image_is_attended_by_itself(lengths: tuple[int, ...]) -> None:
    x = vit_case(lengths)
    out = attend(x)
    assert out.is_contiguous() and out.dtype == torch.bfloat16
    check_images(out, x)


@pytest.mark.parametrize("lengths", LENGTHS[2:4], ids=str)
def test_large_logits_stay_finite_and_right(lengths: tuple[int, ...]) -> None:
    x = vit_case(lengths, amplified=8.0)
    check_images(attend(x), x)


@pytest.mark.parametrize("dim", [32, 64, 72, 80, 90, 96, 128, 160, 256])
def test_head_dimensions_that_the_kernel_lacks_are_padded(dim: int) -> None:
    x = vit_case((130, 1, 64), heads=3, dim=dim)
    out = attend(x)
    assert out.shape == (195, 3, dim) and out.is_contiguous()
    check_images(out, x)


def test_a_dimension_beyond_the_kernels_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="head dimension 264"):
        attend(vit_case((5,), heads=1, dim=264))


def test_operator_and_twin_agree() -> None:
    x = vit_case((300, 41, 1000))
    (want,) = twin(x.q, x.k, x.v, **x.kwargs())  # type: ignore[arg-type]
    check_images(want, x)
    check_images(attend(x), x)


def test_what_another_image_holds_does_not_leak() -> None:
    clean = vit_case((100, 157, 90))
    dirty = vit_case((100, 157, 90))
    for tensor in (dirty.q, dirty.k, dirty.v):
        tensor[100:257] = torch.nan
    first, second = attend(clean), attend(dirty)
    check_bitwise("before", second[:100], first[:100])
    check_bitwise("after", second[257:], first[257:])


def test_no_row_gives_no_row() -> None:
    x = vit_case((4, 3))
    none = VitInputs(q=x.q[:0], k=x.k[:0], v=x.v[:0], borders=x.borders * 0, lengths=(0, 0))
    assert attend(none).shape == (0, 16, 64)


@pytest.mark.parametrize("name", SPEED_LENGTHS)
def test_the_host_never_looks_at_the_borders(name: str) -> None:
    x = vit_case(SPEED_LENGTHS[name])
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = attend(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(out.isfinite().all())


def test_borders_that_change_between_replays_of_a_graph_count() -> None:
    x = vit_case((64, 192, 256))
    attend(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(x)
    moved = VitInputs(q=x.q, k=x.k, v=x.v, borders=x.borders, lengths=(192, 64, 256))
    x.borders.copy_(torch.tensor([0, 192, 256, 512], dtype=torch.int32))
    graph.replay()
    torch.cuda.synchronize()
    check_images(out, moved)


def test_the_result_is_bitwise_that_of_torchs_own_varlen_attention() -> None:
    from torch.nn.attention.varlen import varlen_attn

    x = vit_case((1024, 64, 2304))
    theirs = varlen_attn(x.q, x.k, x.v, x.borders, x.borders, 2304, 2304)
    check_bitwise("out", attend(x), theirs)


def test_borders_one_off_would_be_seen() -> None:
    x = vit_case((65, 64))
    x.borders[1] = 64
    with pytest.raises(AssertionError, match="out: "):
        check_images(attend(x), x)
