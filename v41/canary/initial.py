"""Random weights to start training from, by the kind of tensor."""

from __future__ import annotations

import torch

from v41.canary.circuit import write_circuit
from v41.config import ModelConfig
from v41.tensors import text_tensors

_RESIDUAL = ("wo_b.weight", "w2.weight")  # what writes into the streams starts small


def initial_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Give fp32 weights under their released names."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in text_tensors(config):
        noise = torch.randn(spec.shape, generator=generator)
        name = spec.name
        if name.endswith(("hc_attn_base", "hc_ffn_base")):
            value = _mix_base(config.hc_mult, noise)
        elif name.endswith(("hc_attn_fn", "hc_ffn_fn")):
            value = 0.01 * noise
        elif name.endswith(("bias", "bias_vl")):
            value = torch.zeros(spec.shape)
        elif name.endswith(("attn_sink", "norm.weight", "q_weight", "k_weight", "_scale")):
            value = torch.ones(spec.shape)
        elif name == "embed.weight":
            value = noise
        else:
            value = noise * spec.shape[-1] ** -0.5 * (0.3 if name.endswith(_RESIDUAL) else 1.0)
            if name.endswith("engram.embed.weight"):
                value = 0.5 * noise
        weights[name] = value
    write_circuit(config, weights, generator)
    return weights


def _mix_base(streams: int, noise: torch.Tensor) -> torch.Tensor:
    """Near a plain residual: streams averaged in, output added to each, streams kept apart."""
    base = 0.3 * noise
    base[:streams] -= 1.1
    base[2 * streams :] += 4.0 * torch.eye(streams).flatten()
    return base
