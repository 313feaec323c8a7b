"""The shapes that decide memory and limits, as the released DeepSeek-V4.1-Flash has them."""

from __future__ import annotations

from dataclasses import dataclass

TOKENS_PER_BLOCK = 128
WINDOW_RECORD = 528
COMPRESSED_RECORD = 288
INDEX_RECORD = 68


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a model of this family; layers are counted by what they own.

    ratio_two_sources, ratio_one_sources: layers that keep compressed keys, by tokens per entry.
    candidate_ratio: tokens per entry in the layer that publishes candidate blocks.
    """

    name: str
    hidden: int
    layers: int
    draft_layers: int
    vocab: int
    heads: int
    head_dim: int
    q_lora: int
    o_groups: int
    o_lora: int
    window: int
    ratio_two_sources: int
    ratio_one_sources: int
    index_sources: int
    index_heads: int
    index_dim: int
    index_topk: int
    candidate_blocks: int
    candidate_block: int
    candidate_ratio: int
    experts: int
    draft_experts: int
    experts_per_token: int
    expert_inner: int
    shared_experts: int
    streams: int
    engram_layers: int
    engram_rows: int
    engram_width: int
    engram_rows_per_token: int
    vision_parameters: int


#: config.json of the release; the vision tower's sizes are constants of the engine
V41_FLASH = ModelShape(
    name="DeepSeek-V4.1-Flash",
    hidden=5120,
    layers=40,
    draft_layers=3,
    vocab=129280,
    heads=64,
    head_dim=512,
    q_lora=1280,
    o_groups=8,
    o_lora=1024,
    window=128,
    ratio_two_sources=3,
    ratio_one_sources=1,
    index_sources=8,
    index_heads=32,
    index_dim=128,
    index_topk=512,
    candidate_blocks=2048,
    candidate_block=8,
    candidate_ratio=1,
    experts=384,
    draft_experts=128,
    experts_per_token=6,
    expert_inner=2304,
    shared_experts=1,
    streams=4,
    engram_layers=2,
    engram_rows=384_006_168 + 384_016_682,
    engram_width=256,
    engram_rows_per_token=24,
    vision_parameters=412_000_000 + 5120 * 9216 + 5120 * 5120,
)
