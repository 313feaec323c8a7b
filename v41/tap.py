"""Named tensors at every site of the model: seen, kept or replaced, and free when nobody looks.

A site is named "layers.3.attn.q"; global ones "embed", "final_norm", "logits". The model passes each
tensor through its tap and goes on with what the tap returns, so that one mechanism captures dumps,
feeds another model's inputs (teacher forcing) and injects faults.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Tap(Protocol):
    """Called with a site's name and its tensor; returns the tensor to go on with."""

    def __call__(self, site: str, tensor: torch.Tensor) -> torch.Tensor: ...


def no_tap(site: str, tensor: torch.Tensor) -> torch.Tensor:
    """Look at nothing."""
    return tensor


class Recorder:
    """Keep every tensor whose site passes `wanted`, in the order the model produced them."""

    def __init__(self, wanted: frozenset[str] | None = None) -> None:
        self.wanted = wanted
        self.tensors: dict[str, torch.Tensor] = {}

    def __call__(self, site: str, tensor: torch.Tensor) -> torch.Tensor:
        if self.wanted is None or site in self.wanted:
            self.tensors[site] = tensor.detach().clone()
        return tensor
