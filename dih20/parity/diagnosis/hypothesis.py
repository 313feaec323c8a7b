"""What a known cause predicts for the tensor of a finding, and how well that explains what was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

NAN_THROUGHOUT = 0.65


class InputMissing(Exception):
    """A dump lacks a tensor that a prediction needs; that prediction is then not made."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One cause applied to one site.

    predict: gives the tensor that the site would have under this cause, from B's own inputs.
    exact: the cause leaves no room for a near miss; only an equal tensor counts.
    """

    cause: str
    detail: str
    predict: Callable[[], torch.Tensor]
    exact: bool = False


def explained(seen: torch.Tensor, clean: torch.Tensor, predicted: torch.Tensor) -> float:
    """Give the share of the error that a prediction accounts for: 1 all of it, <= 0 nothing.

    1 - |seen - predicted| / |seen - clean| over the finite elements; elements that are finite in
    one and not in the other lower it by their share. Choices (bool, integers) count differing
    elements instead of distances.
    """
    if predicted.shape != seen.shape or clean.shape != seen.shape:
        return 0.0
    if not seen.is_floating_point():
        wrong = int((seen != clean).sum())
        return 1.0 - int((seen != predicted).sum()) / wrong if wrong else 0.0
    b, a, p = seen.double(), clean.double(), predicted.double()
    finite = b.isfinite() & p.isfinite() & a.isfinite()
    disagree = float((b.isfinite() != p.isfinite()).double().mean())
    error = float((b - a)[finite].norm())
    left = float((b - p)[finite].norm())
    if not bool(finite.any()):
        # Both are not a number throughout: the place speaks for the cause, the values do not.
        return NAN_THROUGHOUT if disagree == 0.0 and not bool(b.isfinite().any()) else 0.0
    if error == 0.0:
        shown_by_nan = bool((b.isfinite() != a.isfinite()).any())
        return 1.0 - disagree if shown_by_nan and left == 0.0 else 0.0
    return 1.0 - left / error - disagree


def is_exactly(seen: torch.Tensor, predicted: torch.Tensor) -> bool:
    return seen.shape == predicted.shape and bool((seen == predicted).all())
