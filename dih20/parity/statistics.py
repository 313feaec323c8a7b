"""What is kept of a tensor besides itself: numbers, a digest and a sketch.

The sketch makes statistics comparable: two sketches give an estimate of the distance between the
tensors they were made of, and say in which part of them it lies, without reading either tensor.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch

from dih20.parity.model import Statistics

SEGMENTS = 64  # a tensor is cut into this many runs of consecutive elements
PROJECTIONS = 4  # random signed sums kept of each segment
_ONES, _ENERGY = PROJECTIONS, PROJECTIONS + 1
SKETCH_SHAPE = (SEGMENTS, PROJECTIONS + 2)


@lru_cache(maxsize=64)
def _signs(length: int, device: str) -> torch.Tensor:
    """Give fp32 (PROJECTIONS + 1, length): fixed pseudo-random signs, and a row of ones."""
    index = torch.arange(length * PROJECTIONS, dtype=torch.int64)
    index = (index ^ (index >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
    index = (index ^ (index >> 12)) * 0x297A2D39 & 0xFFFFFFFF
    bits = (index ^ (index >> 15)) & 1
    signs = (bits * 2 - 1).float().view(PROJECTIONS, length)
    return torch.cat((signs, torch.ones(1, length))).to(device)


def _segments(flat: torch.Tensor) -> torch.Tensor:
    padding = -flat.numel() % SEGMENTS
    padded = torch.nn.functional.pad(flat, (0, padding)) if padding else flat
    return padded.view(SEGMENTS, -1)


def describe(tensor: torch.Tensor) -> tuple[Statistics, torch.Tensor]:
    """Give a tensor's statistics and its sketch, fp32 SKETCH_SHAPE on the CPU.

    Works in four passes on the tensor's own device. Elements that are not finite count as 0 in
    the sketch.
    """
    tensor = tensor.detach().contiguous()
    flat = tensor.flatten()
    count = flat.numel()
    if not count:
        empty = Statistics(
            count=0, nan=0, inf=0, minimum=0.0, maximum=0.0, mean=0.0, rms=0.0, digest="0"
        )
        return empty, torch.zeros(SKETCH_SHAPE)
    values = flat if flat.dtype == torch.float32 else flat.float()
    nan = inf = 0
    low, high = (float(x) for x in torch.aminmax(values))
    if not (abs(low) < float("inf") and abs(high) < float("inf")):
        nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
        finite = values.isfinite()
        low = float(torch.where(finite, values, torch.inf).min()) if bool(finite.any()) else 0.0
        high = float(torch.where(finite, values, -torch.inf).max()) if bool(finite.any()) else 0.0
        values = torch.where(finite, values, torch.zeros_like(values))
    sketch = _sketch(values, largest=max(abs(low), abs(high)))
    num_finite = max(count - nan - inf, 1)
    statistics = Statistics(
        count=count,
        nan=nan,
        inf=inf,
        minimum=low,
        maximum=high,
        mean=float(sketch[:, _ONES].double().sum()) / num_finite,
        rms=(float(sketch[:, _ENERGY].double().sum()) / num_finite) ** 0.5,
        digest=_digest(flat, sketch),
    )
    return statistics, sketch


def _sketch(values: torch.Tensor, largest: float) -> torch.Tensor:
    segments = _segments(values)
    if largest > 1e15:  # squares would leave fp32
        segments = segments.double()
    signs = _signs(segments.shape[1], str(segments.device)).to(segments.dtype)
    energy = torch.linalg.vector_norm(segments, dim=1, keepdim=True).double().square()
    both = torch.cat((torch.nn.functional.linear(segments, signs).double(), energy), dim=1)
    return both.clamp(-3e38, 3e38).float().cpu()


def _digest(flat: torch.Tensor, sketch: torch.Tensor) -> str:
    """Hash exact integer sums of the bytes per segment, with the sketch that sees their order."""
    raw = flat.view(torch.uint8)
    padding = -raw.numel() % (SEGMENTS * 8)
    if padding:
        raw = torch.nn.functional.pad(raw, (0, padding))
    sums = raw.view(torch.int64).view(SEGMENTS, -1).sum(dim=1).cpu()
    content = sums.numpy().tobytes() + sketch.numpy().tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def estimate_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Estimate the normalised difference of two tensors from their sketches.

    For a spread-out difference the estimate is right within about a tenth; for one that is a
    multiple of a single pattern it may be off by a factor of a few.
    """
    gap = (a[:, :PROJECTIONS].double() - b[:, :PROJECTIONS].double()).square().sum() / PROJECTIONS
    energy = a[:, _ENERGY].double().sum() + b[:, _ENERGY].double().sum()
    return float(gap / energy) if float(energy) else 0.0


def worst_segment(a: torch.Tensor, b: torch.Tensor) -> int:
    """Give the segment in which two tensors differ most, by their sketches."""
    gap = (a[:, :PROJECTIONS].double() - b[:, :PROJECTIONS].double()).square().sum(dim=1)
    return int(gap.argmax())
