"""The engine's rules for a config.json: the canary keeps them, and each can be broken."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from v41.canary.constraints import RULES, broken_rules
from v41.canary.shape import config_json

pytestmark = pytest.mark.torch

# rule -> changes that break it; keys of the top level are marked by a leading slash.
BREAKS: dict[str, dict[str, Any]] = {
    "head-dim": {"qk_rope_head_dim": 32},
    "one-kv-head": {"num_key_value_heads": 2},
    "index-head": {"index_n_heads": 64},
    "heads": {"num_attention_heads": 3},
    "hidden-size": {"hidden_size": 640},
    "hidden-range": {"hidden_size": 256},
    "fp8-widths": {"q_lora_rank": 96},
    "experts": {"n_routed_experts": 12},
    "expert-choice": {"num_experts_per_tok": 9},
    "vocabulary": {"vocab_size": 800},
    "window": {"sliding_window": 126},
    "ratio-values": {"compress_ratios": [0, 4, 4, 1, 1, 1]},
    "ratio-count": {"compress_ratios": [0, 2, 2, 1, 1, 1, 1]},
    "ratio-one": {"compress_ratios": [0, 2, 2, 2, 2, 2]},
    "sources": {"index_source_layer_ids": [1, 5]},
    "consumers": {"compress_ratios": [0, 2, 0, 1, 1, 1]},
    "candidate-source": {"candidate_source_layer_id": 4},
    "candidate-ratio": {"candidate_source_layer_id": 1},
    "candidate-blocks": {"candidate_topk_blocks": 4104},
    "candidate-block-size": {"candidate_block_size": 4},
    "candidate-row": {"candidate_topk_blocks": 72},
    "candidate-capacity": {"index_topk": 1024},
    "candidate-length": {"max_position_embeddings": 256},
    "engram-vocabulary": {"engram_compressed_vocab_size": 0},
    "engram-row": {"engram_head_dim": 64},
    "engram-ngram": {"engram_max_ngram_size": 1},
    "pad-token": {"/pad_token_id": 1},
    "image-token": {"/image_token_id": 0},
    "native": {"/tokenizer_compatibility": "release"},
    "quantization": {"/quantization_config": {"quant_method": "fp8"}},
    "dtype": {"/dtype": "float16"},
    "architecture": {"/architectures": ["DeepseekV4ForCausalLM"]},
    "router": {"scoring_func": "sigmoid"},
    "drafts": {"dspark_block_size": None},
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config_json())
    for key, value in changes.items():
        target = config if key.startswith("/") else config["text_config"]
        if value is None:
            del target[key.lstrip("/")]
        else:
            target[key.lstrip("/")] = value
    return config


def test_the_canary_keeps_every_rule() -> None:
    assert broken_rules(config_json()) == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_config_that_breaks_a_rule_is_told_which(name: str) -> None:
    assert name in {rule.name for rule in broken_rules(changed(BREAKS[name]))}


def test_every_rule_has_a_config_that_breaks_it() -> None:
    assert {rule.name for rule in RULES} == set(BREAKS)


@pytest.mark.parametrize("key", ["index_topk", "compress_ratios", "engram_layer_ids"])
def test_a_missing_key_is_a_broken_rule_and_not_a_crash(key: str) -> None:
    assert broken_rules(changed({key: None}))
