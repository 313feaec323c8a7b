"""The canary's config.json: every kind of layer, as small as the engine's rules allow."""

from __future__ import annotations

from typing import Any

from v41.canary.tokenizer import Tokenizer
from v41.canary.vocabulary import SIZE
from v41.engram_vocab import compressed_ids

# layer                 0 window
#                       1 owns ratio-2 entries and an indexer, has an Engram table
#                       2 reuses layer 1
#                       3 owns ratio-1 entries and an indexer, publishes candidate blocks
#                       4 reuses layer 3
#                       5 has an indexer that chooses among layer 3's candidates
_RATIOS = [0, 2, 2, 1, 1, 1]


def config_json() -> dict[str, Any]:
    """Give the whole config.json."""
    tokenizer = Tokenizer.build()
    texts = [tokenizer.decode([token]) for token in range(SIZE)]
    compressed = int(compressed_ids(texts, tokenizer.names).max()) + 1
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": 3,
        "tokenizer_compatibility": "native",
        "quantization_config": {
            "quant_method": "fp8",
            "expert_dtype": "fp4",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
        },
        "text_config": _text_config(compressed),
        "vision_config": {
            "model_type": "deepseek_v41_vision",
            "hidden_size": 1024,
            "patch_size": 14,
            "downsample_ratio": 3,
            "max_image_tokens": 1024,
            "min_pixels": 295936,
            "max_wh_ratio": 4,
        },
    }


def _text_config(compressed: int) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41_text",
        "num_hidden_layers": len(_RATIOS),
        "hidden_size": 512,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "vocab_size": SIZE,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-20,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "sliding_window": 128,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "q_lora_rank": 128,
        "qk_rope_head_dim": 64,
        "o_lora_rank": 128,
        "o_groups": 2,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "compress_ratios": _RATIOS,
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 5],
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 64,
        "candidate_block_size": 8,
        "index_topk": 64,
        "index_n_heads": 8,
        "index_head_dim": 128,
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "engram_layer_ids": [1],
        "engram_max_ngram_size": 3,
        "engram_n_heads": 1,
        "engram_head_dim": 128,
        "engram_vocab_size": 1024,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": compressed,
        "num_nextn_predict_layers": 0,
        "dspark_block_size": 5,
        "dspark_target_layer_ids": [],
        "dspark_markov_rank": 256,
        "dspark_noise_token_id": 4,
        "dspark_n_routed_experts": 8,
        "dspark_num_experts_per_tok": 2,
    }
