"""A tiny random model with every layer kind, for tests of the reference."""

from __future__ import annotations

import torch

from v41.config import ModelConfig, RopeScaling
from v41.tensors import text_tensors

CONFIG = ModelConfig(
    num_hidden_layers=8, hidden_size=128, num_attention_heads=4, head_dim=128, vocab_size=96,
    rms_norm_eps=1e-20, swiglu_limit=10.0, sliding_window=16, rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(
        factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=65536
    ),
    q_lora_rank=128, qk_rope_head_dim=64, o_lora_rank=64, o_groups=2, hc_mult=4, hc_eps=1e-6,
    hc_sinkhorn_iters=20, compress_ratios=(0, 0, 2, 2, 1, 1, 1, 1), kv_source_layer_ids=(2, 4),
    index_source_layer_ids=(2, 4, 6), candidate_source_layer_id=4, candidate_topk_blocks=3,
    candidate_block_size=8, index_topk=8, index_n_heads=2, index_head_dim=128,
    moe_intermediate_size=128, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
    routed_scaling_factor=1.5, engram_layer_ids=(1,), engram_max_ngram_size=3, engram_n_heads=2,
    engram_head_dim=32, engram_vocab_size=64, engram_pad_token_id=2,
)  # fmt: skip


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Give fp32 weights of plausible size for every tensor of the text model."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in text_tensors(config):
        noise = torch.randn(spec.shape, generator=generator)
        if spec.name.endswith(("norm.weight", "q_weight", "k_weight", "_scale")):
            weights[spec.name] = 1.0 + 0.1 * noise
        elif len(spec.shape) == 1:
            weights[spec.name] = 0.1 * noise
        else:
            weights[spec.name] = noise * spec.shape[-1] ** -0.5
    return weights


def compressed_ids(config: ModelConfig) -> torch.Tensor:
    """Give a token map that merges neighbouring ids, as case folding does."""
    return torch.arange(config.vocab_size) // 2
