"""A tiny random checkpoint with every layer kind, and the prompt that sabotage starts from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from dih20.parity.oracle import Oracle
from dih20.parity.sabotage.base import Base
from tests.v41.tiny import CONFIG, compressed_ids, random_weights
from v41.checkpoint import CheckpointReader, load_weights, write_checkpoint

# An Engram row of 128 has four scales.
SABOTAGED_CONFIG = dataclasses.replace(
    CONFIG, engram_head_dim=128, hc_sinkhorn_iters=3, num_hidden_layers=6,
    compress_ratios=(0, 2, 2, 1, 1, 1), kv_source_layer_ids=(1, 3), index_source_layer_ids=(1, 3, 5),
    candidate_source_layer_id=3,
)  # fmt: skip
SINK = 1.5  # near the window keys' logits, so that a wrong sink shows in bf16


def make_base(folder: Path) -> Base:
    """Write the checkpoint and give the base."""
    weights = random_weights(SABOTAGED_CONFIG, seed=1)
    for name in weights:
        if name.endswith("attn_sink"):
            weights[name] = SINK + 5.0 * weights[name]
    write_checkpoint(folder, dataclasses.asdict(SABOTAGED_CONFIG), weights)
    generator = torch.Generator().manual_seed(3)
    return Base(
        oracle=Oracle(
            config=SABOTAGED_CONFIG,
            weights=load_weights(CheckpointReader(folder), "trained"),
            compressed_ids=compressed_ids(SABOTAGED_CONFIG),
            mode="trained",
            weights_hash="a random checkpoint",
            checkpoint=folder,
        ),
        tokens=torch.randint(3, SABOTAGED_CONFIG.vocab_size, (1, 54), generator=generator),
        rows=(53, 1),
        data_class="synthetic",
        block_tokens=16,
    )
