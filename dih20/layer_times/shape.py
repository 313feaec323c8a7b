"""config.json of six layers with the released sizes, one of each kind, and 48 experts as at EP=8."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from v41.canary import FOLDER as CANARY

KINDS = (
    "window",
    "ratio 2, owns keys and an indexer, Engram",
    "ratio 2, reuses",
    "ratio 1, owns keys and an indexer, publishes candidates",
    "ratio 1, reuses",
    "ratio 1, selects among candidates",
)
ENGRAM_VOCABULARY = 200_000  # rows of one of 24 tables; the release's 16,000,000 do not fit one GPU
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def config_json(*, experts: int = 48) -> dict[str, Any]:
    """Give the whole config.json: the release's, but for layers, experts, vocabulary and Engram's rows."""
    config: dict[str, Any] = json.loads((CANARY / "config.json").read_text(encoding="utf-8"))
    config["text_config"] |= {
        "num_hidden_layers": len(KINDS),
        "hidden_size": 5120,
        "num_attention_heads": 64,
        "max_position_embeddings": 1_048_576,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "compress_ratios": [0, 2, 2, 1, 1, 1],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 5],
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "index_topk": 512,
        "index_n_heads": 32,
        "moe_intermediate_size": 2304,
        "n_routed_experts": experts,
        "num_experts_per_tok": 6,
        "engram_layer_ids": [1],
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_vocab_size": ENGRAM_VOCABULARY,
    }
    return config


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write what the engine reads before it loads weights: the config and the canary's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for name in _TOKENIZER:
        shutil.copyfile(CANARY / name, folder / name)
    return folder
