"""Batches of images for the vision tower's attention, as views of one qkv matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from h20_ops.testing.seeds import generator_for

HEADS, DIM = 16, 64  # of the vision tower
SPEED_LENGTHS: dict[str, tuple[int, ...]] = {
    "8 x 1024": (1024,) * 8,
    "16 x 2304": (2304,) * 16,
    "mixed": (9216, 64, 2304, 1024, 4096, 256, 576, 1024, 1, 3000, 729, 2304),
}


@dataclass(frozen=True, kw_only=True)
class VitInputs:
    """q, k, v bf16 (rows, heads, dim), strides (3 * heads * dim, dim, 1); borders int32 (images + 1,)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    borders: torch.Tensor
    lengths: tuple[int, ...]

    def kwargs(self) -> dict[str, object]:
        """Keyword arguments as the vision tower gives them."""
        longest = max(self.lengths)
        return {
            "cu_seqlens_q": self.borders,
            "cu_seqlens_k": self.borders,
            "max_seqlen_q": longest,
            "max_seqlen_k": longest,
            "softmax_scale": None,
            "causal": False,
            "window_size_left": -1,
            "window_size_right": -1,
            "num_splits": 1,
            "pack_gqa": None,
            "return_lse": False,
        }


def vit_case(
    lengths: Sequence[int],
    *,
    heads: int = HEADS,
    dim: int = DIM,
    amplified: float = 1.0,
    device: str = "cuda",
    seed: int = 0,
) -> VitInputs:
    """Give normal q, k, v times `amplified`."""
    rows = sum(lengths)
    rng = generator_for(f"vit {tuple(lengths)} {heads} {dim} {seed}", device)
    qkv = torch.randn((rows, 3 * heads * dim), generator=rng, device=device) * amplified
    q, k, v = qkv.bfloat16().view(rows, 3, heads, dim).unbind(1)
    borders = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
    return VitInputs(q=q, k=k, v=v, borders=borders.to(device), lengths=tuple(lengths))


def image_by_image(x: VitInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Give fp32 (rows, heads, dim): a softmax over each image by itself, and what it sums, all positive.

    The second is the sum of probabilities times magnitudes of values: probabilities rounded to bf16
    move the result by at most 2^-8 of it.
    """
    out, summed = (torch.empty(x.q.shape, dtype=torch.float32, device=x.q.device) for _ in range(2))
    start = 0
    for length in x.lengths:
        at = slice(start, start + length)
        for head in range(x.q.shape[1]):
            q, k, v = (t[at, head].float() for t in (x.q, x.k, x.v))
            probabilities = torch.softmax(q @ k.t() * x.q.shape[2] ** -0.5, dim=-1)
            out[at, head], summed[at, head] = probabilities @ v, probabilities @ v.abs()
        start += length
    return out, summed
