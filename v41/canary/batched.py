"""The model for training: the reference over whole sequences, all experts in two products.

It computes what v41.model computes, without a loop over experts; the tests hold the two together.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, silu

from v41 import moe
from v41.canary.stacked import EXPERT_PARTS, Weights
from v41.canary.straight import TrainingNumerics
from v41.config import ModelConfig
from v41.model import Reference
from v41.numerics import Mode


class TrainingModel(Reference):
    """A reference whose weights are stacked (see v41.canary.stacked).

    loads: after a pass, how large a share of the tokens each expert got, per layer, (experts,).
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        compressed_ids: torch.Tensor,
        mode: Mode = "trained",
    ) -> None:
        numerics = TrainingNumerics.of(mode)
        super().__init__(config, weights, numerics=numerics, compressed_ids=compressed_ids)
        self.loads: list[torch.Tensor] = []

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give fp32 (batch, rows, vocab) of whole sequences."""
        self.loads = []
        return self.extend(tokens, self.new_cache())

    def _moe(self, site: str, x: torch.Tensor) -> torch.Tensor:
        """Run all experts on all tokens; those not chosen get weight 0."""
        config, w, n = self.config, self.weights, self.numerics
        gate, bias = w[f"{site}.gate.weight"], w[f"{site}.gate.bias"]
        flat = x.flatten(0, 1)
        chosen, weights = moe.route(
            flat,
            gate,
            bias,
            topk=config.num_experts_per_tok,
            scaling=config.routed_scaling_factor,
        )
        dense = torch.zeros(len(flat), config.n_routed_experts).scatter(1, chosen, weights)
        self.loads.append((dense > 0).float().mean(dim=0))
        w1, w3, w2 = (w[f"{site}.experts.{part}"] for part in EXPERT_PARTS)
        hidden = self._swiglu(flat, w1.flatten(0, 1), w3.flatten(0, 1))
        hidden = hidden.unflatten(-1, (config.n_routed_experts, -1)) * dense.unsqueeze(-1)
        routed = linear(n.activation(hidden.flatten(-2)), w2.transpose(0, 1).flatten(1))
        s1, s3, s2 = (w[f"{site}.shared_experts.{part}.weight"] for part in EXPERT_PARTS)
        shared = n.linear(self._swiglu(flat, s1, s3), s2)
        return n.bf16(routed + shared).view_as(x)

    def _swiglu(self, x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
        limit = self.config.swiglu_limit
        gate = self.numerics.linear(x, w1).clamp_max(limit)
        up = self.numerics.linear(x, w3).clamp(-limit, limit)
        return silu(gate) * up
