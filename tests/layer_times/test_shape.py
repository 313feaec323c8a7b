"""The six layers have the release's sizes and pass its config's own checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dih20.capacity.model_shape import V41_FLASH
from dih20.layer_times.shape import KINDS, config_json, write_model

pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch


def test_sizes_are_those_of_the_release() -> None:
    text = config_json()["text_config"]
    released = {
        "hidden_size": V41_FLASH.hidden,
        "num_attention_heads": V41_FLASH.heads,
        "head_dim": V41_FLASH.head_dim,
        "q_lora_rank": V41_FLASH.q_lora,
        "o_groups": V41_FLASH.o_groups,
        "o_lora_rank": V41_FLASH.o_lora,
        "sliding_window": V41_FLASH.window,
        "index_n_heads": V41_FLASH.index_heads,
        "index_head_dim": V41_FLASH.index_dim,
        "index_topk": V41_FLASH.index_topk,
        "candidate_topk_blocks": V41_FLASH.candidate_blocks,
        "candidate_block_size": V41_FLASH.candidate_block,
        "num_experts_per_tok": V41_FLASH.experts_per_token,
        "moe_intermediate_size": V41_FLASH.expert_inner,
        "hc_mult": V41_FLASH.streams,
        "engram_head_dim": V41_FLASH.engram_width,
    }
    assert {name: text[name] for name in released} == released
    assert text["n_routed_experts"] == V41_FLASH.experts // 8


def test_every_kind_of_layer_is_there_once() -> None:
    text = config_json()["text_config"]
    assert len(text["compress_ratios"]) == text["num_hidden_layers"] == len(KINDS)
    assert text["candidate_source_layer_id"] in text["kv_source_layer_ids"]
    assert max(text["index_source_layer_ids"]) > text["candidate_source_layer_id"]


def test_the_reference_reads_the_written_config(tmp_path: Path) -> None:
    from v41.config import ModelConfig

    folder = write_model(tmp_path / "model", config_json())
    assert (folder / "tokenizer.json").is_file()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    read = ModelConfig.from_hf(config)
    assert read.hidden_size == 5120
