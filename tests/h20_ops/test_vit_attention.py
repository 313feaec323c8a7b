"""Attention of the vision tower: each image by itself, whatever its neighbours hold."""

from __future__ import annotations

import pytest
import torch

from h20_ops.errors import UnsupportedError
from h20_ops.vit_attention import vit_attention

pytestmark = pytest.mark.torch


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    borders = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
    longest = max(lengths)
    (out,) = vit_attention(
        q, k, v, cu_seqlens_q=borders, cu_seqlens_k=borders, max_seqlen_q=longest,
        max_seqlen_k=longest, softmax_scale=None, causal=False, window_size_left=-1,
        window_size_right=-1, num_splits=1, pack_gqa=None, return_lse=False,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("lengths", [[1], [64, 65], [1, 63, 64, 65, 200, 7, 30], [1100, 3]])
@pytest.mark.parametrize("amplified", [1.0, 8.0])
def test_each_image_is_attended_by_itself(lengths: list[int], amplified: float) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    rows = sum(lengths)
    qkv = (torch.randn(rows, 3, 16, 64, generator=generator) * amplified).bfloat16()
    q, k, v = qkv.flatten(1).view(rows, 3, 16, 64).unbind(1)  # strides (3072, 64, 1)
    assert q.stride() == (3072, 64, 1)
    out = attend(q, k, v, lengths)
    assert out.shape == (rows, 16, 64) and out.dtype == torch.bfloat16 and out.is_contiguous()
    start = 0
    for length in lengths:
        at = slice(start, start + length)
        heads = [t[at].double().transpose(0, 1) for t in (q, k, v)]
        logits = heads[0] @ heads[1].transpose(1, 2) * 64**-0.5
        want = (logits.softmax(-1) @ heads[2]).transpose(0, 1)
        torch.testing.assert_close(out[at].double(), want, atol=2e-3, rtol=2 / 128)
        start += length


def test_what_another_image_holds_does_not_leak() -> None:
    q = torch.randn(70, 2, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    clean = attend(q, q, q, [30, 40])
    poisoned = q.clone()
    poisoned[30:] = 1e30
    assert torch.equal(attend(q, poisoned, poisoned, [30, 40])[:30], clean[:30])


def test_other_masks_are_refused_by_name() -> None:
    q = torch.zeros(4, 1, 64).bfloat16()
    borders = torch.tensor([0, 4], dtype=torch.int32)
    for wrong in ({"causal": True}, {"window_size_left": 5}, {"return_lse": True}):
        with pytest.raises(UnsupportedError, match="full attention within each image"):
            vit_attention(
                q, q, q, cu_seqlens_q=borders, cu_seqlens_k=borders, max_seqlen_q=4,
                max_seqlen_k=4, **wrong,
            )  # fmt: skip
