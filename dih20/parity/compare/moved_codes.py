"""Whether a dense site's error is one of FP8 codes that fell on the other side of a tie.

Inside a site the input of its last linear is rounded to FP8, 2^-4 of a value at most. Where a row's
value lies so close to halfway that one bf16 step before it decides, a sound engine may take the
neighbouring code; in a row of its own, as in decode, one such code is an error of 1e-4 to 1e-3.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import torch

from dih20.parity.compare.dense import dense_distance
from dih20.parity.compare.rounding import BF16_STEP
from dih20.parity.model import Measure
from v41.numerics import Numerics

SITES = (".ffn.shared", ".attn.output")
_SWIGLU = ".ffn.shared"
# One step of 2^-3 in every code of a tensor; what is further off, or not finite, codes do not explain.
_LARGEST = 2.0**-7
_NEAR = 0.25  # a fitted change is this close to a whole one, as a share of it, or is none

Bounds = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class LinearCall:
    """One FP8 linear of the reference. x: fp32, before its rounding, (..., K); weight: (N, K)."""

    x: torch.Tensor
    weight: torch.Tensor
    result: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class RecordingNumerics(Numerics):
    """The roundings of a mode, with the last three linears kept: gate, up and down of an expert."""

    calls: deque[LinearCall] = field(default_factory=lambda: deque(maxlen=3))

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = super().linear(x, weight)
        self.calls.append(LinearCall(x=x, weight=weight, result=result))
        return result


def moved_codes(
    measure: Measure,
    site: str,
    stored: torch.Tensor,
    numerics: RecordingNumerics,
    swiglu_limit: float,
) -> Measure:
    """Add to a measure how many codes moved, of how many that may, and what error is left then.

    Called right after the reference has computed the site. Only codes that one bf16 step of the
    numbers before them decides may move, each to where that step takes it; which of them did is
    fitted to the stored rows.

    Args:
        measure: of the stored tensor against what the reference computed.
        site: ends with one of SITES.
        stored: what the engine has there, (..., N), with the rows of the reference's.
    """
    if not measure.value <= _LARGEST:
        return measure
    last = numerics.calls[-1]
    low, high = _swiglu(numerics, swiglu_limit) if site.endswith(_SWIGLU) else _one_step(last.x)
    codes, below, above = (
        numerics.activation(each).flatten(0, -2).double() for each in (last.x, low, high)
    )
    weight = last.weight.double()
    result = last.result.flatten(0, -2)
    engine = stored.float().reshape(result.shape)
    rest = result.clone()
    moved = 0
    for row in range(len(result)):
        loose = ((below[row] != codes[row]) | (above[row] != codes[row])).nonzero().flatten()
        if not len(loose):
            continue
        columns = weight[:, loose]
        error = (engine[row] - result[row]).double().unsqueeze(-1)
        fitted = torch.linalg.lstsq(columns, error, driver="gelsd").solution[:, 0]
        change = torch.zeros_like(fitted)
        for end in (below, above):
            whole = end[row, loose] - codes[row, loose]
            change = torch.where((fitted - whole).abs() < _NEAR * whole.abs(), whole, change)
        moved += int(change.count_nonzero())
        rest[row] = numerics.bf16((result[row].double() + columns @ change).float())
    left = dense_distance([(rest.flatten(), engine.flatten())], tuple(rest.shape)).normalised
    counts = {
        "codes": codes.numel(),
        "codes_near_a_tie": int(((below != codes) | (above != codes)).sum()),
        "codes_moved": moved,
        "error_without_them": left,
    }
    details = {**measure.details, **counts}
    return replace(measure, details=details, explained=left <= measure.limit)


def _one_step(x: torch.Tensor) -> Bounds:
    """Give a bf16 tensor's neighbours on both sides, each at most this far."""
    return x * (1 - BF16_STEP), x * (1 + BF16_STEP)


def _swiglu(numerics: RecordingNumerics, limit: float) -> Bounds:
    """Give the least and the most of silu(gate) * up, with gate and up one bf16 step off each."""
    gates, ups = (_one_step(call.result) for call in list(numerics.calls)[:2])
    products = [
        torch.nn.functional.silu(gate.clamp_max(limit)) * up.clamp(-limit, limit)
        for gate in gates
        for up in ups
    ]
    every = torch.stack(products)
    return every.amin(dim=0), every.amax(dim=0)
