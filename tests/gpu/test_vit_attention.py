"""The vision tower's attention on the GPU: each image by itself, and nothing read on the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from h20_ops.errors import UnsupportedError
from h20_ops.testing.compare import check_bitwise, check_close
from h20_ops.testing.tolerances import Tolerance
from h20_ops.testing.vit_cases import SPEED_LENGTHS, VitInputs, image_by_image, vit_case
from h20_ops.torch_ref.vit_attention import vit_attention as twin
from h20_ops.vit_attention import vit_attention

pytestmark = pytest.mark.gpu

BF16_OUT = Tolerance(abs=2e-3, rel=2 / 128, normalised=1e-5)
# Large logits: probabilities are rounded to bf16 before they meet values of magnitude eight.
BF16_AMPLIFIED = Tolerance(abs=1.6e-2, rel=2 / 128, normalised=2e-5)
LENGTHS = [(1,), (63, 64), (64, 65), (1, 63, 64, 65, 200, 7, 30), (9216, 1, 64, 65), (17,) * 64]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """What we compare with multiplies in fp32 and not in tf32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def attend(x: VitInputs) -> torch.Tensor:
    (out,) = vit_attention(x.q, x.k, x.v, **x.kwargs())  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}x{max(lengths)}")
def test_each_image_is_attended_by_itself(lengths: tuple[int, ...]) -> None:
    x = vit_case(lengths)
    out = attend(x)
    assert out.is_contiguous() and out.dtype == torch.bfloat16
    print(check_close("out", out, image_by_image(x), BF16_OUT))


@pytest.mark.parametrize("lengths", LENGTHS[2:4], ids=str)
def test_large_logits_stay_finite_and_right(lengths: tuple[int, ...]) -> None:
    x = vit_case(lengths, amplified=8.0)
    print(check_close("out", attend(x), image_by_image(x), BF16_AMPLIFIED))


@pytest.mark.parametrize("dim", [32, 64, 72, 80, 90, 96, 128, 160, 256])
def test_head_dimensions_that_the_kernel_lacks_are_padded(dim: int) -> None:
    x = vit_case((130, 1, 64), heads=3, dim=dim)
    out = attend(x)
    assert out.shape == (195, 3, dim) and out.is_contiguous()
    print(check_close("out", out, image_by_image(x), BF16_OUT))


def test_a_dimension_beyond_the_kernels_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="head dimension 264"):
        attend(vit_case((5,), heads=1, dim=264))


def test_operator_and_twin_agree() -> None:
    x = vit_case((300, 41, 1000))
    (want,) = twin(x.q, x.k, x.v, **x.kwargs())  # type: ignore[arg-type]
    print(check_close("out", attend(x), want.float(), BF16_OUT))


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
    check_close("replayed", out, image_by_image(moved), BF16_OUT)


def test_the_result_is_bitwise_that_of_torchs_own_varlen_attention() -> None:
    from torch.nn.attention.varlen import varlen_attn

    x = vit_case((1024, 64, 2304))
    theirs = varlen_attn(x.q, x.k, x.v, x.borders, x.borders, 2304, 2304)
    check_bitwise("out", attend(x), theirs)


def test_borders_one_off_would_be_seen() -> None:
    x = vit_case((65, 64))
    x.borders[1] = 64
    with pytest.raises(AssertionError, match="out: "):
        check_close("out", attend(x), image_by_image(x), BF16_OUT)
