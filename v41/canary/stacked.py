"""Weights for the batched model: each layer's experts in one tensor, values as stored."""

from __future__ import annotations

import torch

from v41.canary.straight import as_stored
from v41.config import ModelConfig
from v41.tensors import Storage, text_tensors

Weights = dict[str, torch.Tensor]
EXPERT_PARTS = ("w1", "w3", "w2")


def stack_experts(config: ModelConfig, weights: Weights) -> Weights:
    """Give the released weights with each layer's experts in one tensor: (experts, N, K)."""
    out = {name: weight for name, weight in weights.items() if ".experts." not in name}
    for layer in range(config.num_hidden_layers):
        for part in EXPERT_PARTS:
            names = [
                f"layers.{layer}.ffn.experts.{expert}.{part}.weight"
                for expert in range(config.n_routed_experts)
            ]
            out[f"layers.{layer}.ffn.experts.{part}"] = torch.stack([weights[n] for n in names])
    return out


def unstack_experts(weights: Weights) -> Weights:
    """Undo stack_experts."""
    out: Weights = {}
    for name, weight in weights.items():
        if ".ffn.experts." not in name:
            out[name] = weight
            continue
        site, part = name.rsplit(".", 1)
        out |= {f"{site}.{index}.{part}.weight": one for index, one in enumerate(weight)}
    return out


def storages(config: ModelConfig) -> dict[str, Storage]:
    """Give how each tensor of stacked weights is stored."""
    found: dict[str, Storage] = {
        s.name: s.storage for s in text_tensors(config) if ".experts." not in s.name
    }
    layers, parts = range(config.num_hidden_layers), EXPERT_PARTS
    for layer in layers:
        found |= {f"layers.{layer}.ffn.experts.{part}": "fp4" for part in parts}
    return found


def rounded_weights(config: ModelConfig, weights: Weights) -> Weights:
    """Give stacked weights as the checkpoint would return them."""
    kinds = storages(config)
    return {name: as_stored(weight, kinds[name]) for name, weight in weights.items()}
