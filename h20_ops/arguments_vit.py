"""Argument checks of the vision tower's attention; shared by operator and twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

LARGEST_DIM = 256


def check_vit_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    causal: bool,
    windows: tuple[int | None, int | None],
    return_lse: bool,
) -> None:
    """Refuse other masks; assert shapes, strides and devices."""
    import torch

    if causal or return_lse or any(window not in (-1, None) for window in windows):
        raise UnsupportedError(
            f"causal={causal}, window {windows}, return_lse={return_lse}",
            "full attention within each image, without lse: what the vision tower asks for",
            "call torch.nn.attention for other masks",
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        assert tensor.dim() == 3, f"{name}: {tuple(tensor.shape)}, want (rows, heads, dim)"
        assert tensor.stride(2) == 1, f"{name}: strides {tensor.stride()}, last not 1"
    for name, borders in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        assert borders.dtype == torch.int32, f"{name}: {borders.dtype}, want int32"
        assert borders.device == q.device, f"{name}: on {borders.device}, q on {q.device}"
    if q.shape[2] > LARGEST_DIM:
        raise UnsupportedError(
            f"head dimension {q.shape[2]}",
            f"at most {LARGEST_DIM}: torch's kernel has no larger one",
            "call torch.nn.functional.scaled_dot_product_attention image by image",
        )
