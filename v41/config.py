"""The model's shape, read from a released config.json, and what each layer is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

CandidateRole = Literal["none", "source", "consumer"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """YaRN: frequencies below beta_slow rotations are divided by factor, a ramp lies between."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """What a layer owns and what it reads.

    ratio: tokens per compressed entry; 0 means the layer sees its window only.
    kv_source: layer whose compressed cache is read (itself if it owns one), None for ratio 0.
    index_source: layer whose selection is used (itself if it has an indexer), None for ratio 0.
    candidates: "source" publishes candidate blocks, "consumer" scores only those.
    """

    ratio: int
    kv_source: int | None
    index_source: int | None
    owns_kv: bool
    owns_index: bool
    candidates: CandidateRole
    engram: bool

    @property
    def name(self) -> str:
        """Give a short name, the same for layers of one kind: parity reports count these."""
        if self.ratio == 0:
            base = "window"
        elif self.owns_kv:
            base = f"full-r{self.ratio}"
        elif self.owns_index:
            base = f"reindex-r{self.ratio}"
        else:
            base = f"reuse-r{self.ratio}"
        suffix = "" if self.candidates == "none" else f"-candidate-{self.candidates}"
        return base + suffix + ("+engram" if self.engram else "")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Keys of text_config that the text model needs, under their released names."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    swiglu_limit: float
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling | None
    q_lora_rank: int
    qk_rope_head_dim: int
    o_lora_rank: int
    o_groups: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int
    index_topk: int
    index_n_heads: int
    index_head_dim: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    engram_layer_ids: tuple[int, ...]
    engram_max_ngram_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_vocab_size: int
    engram_pad_token_id: int

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> ModelConfig:
        """Read a released config.json: the text_config, or a flat dictionary of its keys.

        Raises KeyError with the missing key; other keys (vision, drafts) are not this model's.
        """
        text = config.get("text_config", config)
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = text[field.name]
            values[field.name] = tuple(value) if isinstance(value, list) else value
        if (scaling := text["rope_scaling"]) is not None:
            names = [field.name for field in fields(RopeScaling)]
            values["rope_scaling"] = RopeScaling(**{name: scaling[name] for name in names})
        return cls(**values)

    def layer(self, index: int) -> LayerKind:
        """Give what layer `index` owns and reads; a consumer reads the nearest source before it."""
        ratio = self.compress_ratios[index]
        owns_kv = index in self.kv_source_layer_ids
        owns_index = index in self.index_source_layer_ids
        source = self.candidate_source_layer_id
        candidates: CandidateRole = "none"
        if owns_index and source is not None and index >= source:
            candidates = "source" if index == source else "consumer"
        return LayerKind(
            ratio=ratio,
            kv_source=_nearest(self.kv_source_layer_ids, index) if ratio else None,
            index_source=_nearest(self.index_source_layer_ids, index) if ratio else None,
            owns_kv=owns_kv,
            owns_index=owns_index,
            candidates=candidates,
            engram=index in self.engram_layer_ids,
        )

    @property
    def layers(self) -> list[LayerKind]:
        return [self.layer(index) for index in range(self.num_hidden_layers)]


def _nearest(sources: tuple[int, ...], index: int) -> int:
    """Give the last source at or before a layer."""
    before = [source for source in sources if source <= index]
    assert before, f"layer {index} reads compressed entries, and no source in {sources} precedes it"
    return max(before)
