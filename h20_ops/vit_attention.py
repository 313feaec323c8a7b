"""Attention of the vision tower: images side by side in one batch, each row sees its own image.

On a GPU torch's own FlashAttention kernel does it, by `aten::_flash_attention_forward`, which takes the
segment borders as a tensor and reads nothing on the host; elsewhere the twin does. It is the kernel behind
torch.nn.attention.varlen.varlen_attn, without that function's extra result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_DIM_MULTIPLE = 8  # of the kernel's head dimension; others are padded with zeros


def vit_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int | None = -1,
    window_size_right: int | None = -1,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor]:
    """Return full attention within each segment, as a tuple of one.

    Args:
        q, k, v: bf16 (rows, heads, dim), rows strided, the last dimension contiguous; dim up to 256.
        cu_seqlens_q, cu_seqlens_k: int32 (segments + 1,), on the device of q.
        max_seqlen_q, max_seqlen_k: length of the longest segment.
        softmax_scale: dim^-0.5 by default.
        causal, window_size_left, window_size_right: False, -1, -1; nothing else is served.
        num_splits, pack_gqa: schedules of another kernel; no influence.
        return_lse: False.
    Returns:
        (out,): (rows, heads, dim), contiguous, dtype of q.
    """
    import torch

    from h20_ops.arguments_vit import check_vit_attention

    windows = (window_size_left, window_size_right)
    check_vit_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, windows, return_lse)
    if q.device.type != "cuda":
        from h20_ops.torch_ref.vit_attention import vit_attention as twin

        return twin(
            q,
            k,
            v,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            softmax_scale=softmax_scale,
        )
    heads_dim = q.shape[2]
    scale = heads_dim**-0.5 if softmax_scale is None else softmax_scale
    if q.shape[0] == 0 or k.shape[0] == 0:
        return (torch.zeros(q.shape, dtype=q.dtype, device=q.device),)
    padding = -heads_dim % _DIM_MULTIPLE
    if padding:  # channels of zeros add nothing to a product and give zeros
        q, k, v = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (q, k, v))
    out = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        0.0,
        False,
        False,
        scale=scale,
    )[0]
    return (out[..., :heads_dim].contiguous() if padding else out,)
