"""What the engine's loader, its kernels and their SM90 replacements ask of a config.json.

Each rule has a name, a statement, and a test of one config; broken_rules() gives those that a config
breaks. The engine asserts most of these deep inside its start, some only at the first request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
_QUANTIZATION = {
    "quant_method": "fp8",
    "expert_dtype": "fp4",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """holds: is called with the whole config and its text_config."""

    name: str
    says: str
    holds: Callable[[Json, Json], bool]


def broken_rules(config: Json) -> list[Rule]:
    """Give the rules that a config.json breaks; a rule that stumbles over a missing key is broken."""
    return [rule for rule in RULES if not _holds(rule, config)]


def _holds(rule: Rule, config: Json) -> bool:
    try:
        return rule.holds(config, config["text_config"])
    except (KeyError, TypeError, IndexError, ValueError):
        return False


def _multiples(text: Json, keys: tuple[str, ...], step: int) -> bool:
    return all(text[key] > 0 and text[key] % step == 0 for key in keys)


def _ratios(text: Json) -> list[int]:
    ratios: list[int] = text["compress_ratios"][: text["num_hidden_layers"]]
    return ratios


def _nearest(sources: list[int], layer: int) -> int:
    return max(source for source in sources if source <= layer)


def _consumers_match(_: Json, text: Json) -> bool:
    """Check that every layer from the first source on has the ratio of the sources it reads."""
    ratios = _ratios(text)
    for key in ("kv_source_layer_ids", "index_source_layer_ids"):
        sources = text[key]
        for layer in range(min(sources), len(ratios)):
            if ratios[layer] == 0 or ratios[layer] != ratios[_nearest(sources, layer)]:
                return False
    return all(ratio == 0 for ratio in ratios[: min(text["kv_source_layer_ids"])])


def _candidate_ratio(_: Json, text: Json) -> bool:
    source = text["candidate_source_layer_id"]
    return source is None or len(set(_ratios(text)[source:])) == 1


def _candidate_capacity(_: Json, text: Json) -> bool:
    return bool(text["candidate_topk_blocks"] * text["candidate_block_size"] >= text["index_topk"])


def _candidates_fit(_: Json, text: Json) -> bool:
    """The engine asserts the number of blocks against the longest context it is started with."""
    source = text["candidate_source_layer_id"]
    if source is None:
        return True
    ratio = _ratios(text)[source]
    longest = math.ceil(text["max_position_embeddings"] / ratio / 8)
    return bool(text["candidate_topk_blocks"] <= longest)


RULES = (
    Rule(name="head-dim", says="head_dim is 512, the last 64 of it rotary",
         holds=lambda _, t: t["head_dim"] == 512 and t["qk_rope_head_dim"] == 64),
    Rule(name="one-kv-head", says="num_key_value_heads is 1",
         holds=lambda _, t: t["num_key_value_heads"] == 1),
    Rule(name="index-head", says="index_head_dim is 128 and there are at most 32 index heads",
         holds=lambda _, t: t["index_head_dim"] == 128 and 0 < t["index_n_heads"] <= 32),
    Rule(name="heads", says="at most 128 attention heads, a multiple of o_groups",
         holds=lambda _, t: 0 < t["num_attention_heads"] <= 128
         and t["num_attention_heads"] % t["o_groups"] == 0),
    Rule(name="hidden-size", says="hidden_size is a multiple of 256 (of 128 without Engram)",
         holds=lambda _, t: t["hidden_size"] % (256 if t["engram_layer_ids"] else 128) == 0),
    Rule(name="hidden-range", says="hidden_size is 512..8192",
         holds=lambda _, t: 512 <= t["hidden_size"] <= 8192),
    Rule(name="fp8-widths", says="q_lora_rank, moe_intermediate_size, o_lora_rank: multiples of 128",
         holds=lambda _, t: _multiples(
             t, ("q_lora_rank", "moe_intermediate_size", "o_lora_rank"), 128)),
    Rule(name="experts", says="n_routed_experts is a multiple of 8",
         holds=lambda _, t: _multiples(t, ("n_routed_experts",), 8)),
    Rule(name="expert-choice", says="num_experts_per_tok is 1..32 and at most n_routed_experts",
         holds=lambda _, t: 0 < t["num_experts_per_tok"] <= min(32, t["n_routed_experts"])),
    Rule(name="vocabulary", says="vocab_size is a multiple of 256",
         holds=lambda _, t: _multiples(t, ("vocab_size",), 256)),
    Rule(name="window", says="sliding_window is a multiple of 4",
         holds=lambda _, t: _multiples(t, ("sliding_window",), 4)),
    Rule(name="ratio-values", says="compress_ratios are 0, 1 or 2",
         holds=lambda _, t: set(_ratios(t)) <= {0, 1, 2}),
    Rule(name="ratio-count", says="one compress ratio per layer and draft stage",
         holds=lambda _, t: len(t["compress_ratios"])
         == t["num_hidden_layers"] + t["num_nextn_predict_layers"]),
    Rule(name="ratio-one", says="some layer has ratio 1, and the first such layer owns its entries",
         holds=lambda _, t: _ratios(t).index(1) in t["kv_source_layer_ids"]),
    Rule(name="sources", says="every kv source is an index source",
         holds=lambda _, t: set(t["kv_source_layer_ids"]) <= set(t["index_source_layer_ids"])),
    Rule(name="consumers", says="layers after the first source have the ratio of what they read",
         holds=_consumers_match),
    Rule(name="candidate-source", says="the candidate source is a kv and index source, or null",
         holds=lambda _, t: t["candidate_source_layer_id"] is None
         or (t["candidate_source_layer_id"] in t["index_source_layer_ids"]
             and t["candidate_source_layer_id"] in t["kv_source_layer_ids"])),
    Rule(name="candidate-ratio", says="layers from the candidate source on have its ratio",
         holds=_candidate_ratio),
    Rule(name="candidate-blocks", says="candidate_topk_blocks is a multiple of 8, at most 4096",
         holds=lambda _, t: _multiples(t, ("candidate_topk_blocks",), 8)
         and t["candidate_topk_blocks"] <= 4096),
    Rule(name="candidate-block-size", says="candidate_block_size is 8 or 16",
         holds=lambda _, t: t["candidate_block_size"] in (8, 16)),
    Rule(name="candidate-row", says="a bf16 row of all candidates is a multiple of 1024 bytes",
         holds=lambda _, t: t["candidate_topk_blocks"] * t["candidate_block_size"] * 2 % 1024 == 0),
    Rule(name="candidate-capacity", says="the candidates hold at least index_topk entries",
         holds=_candidate_capacity),
    Rule(name="candidate-length", says="the longest context has at least candidate_topk_blocks blocks",
         holds=_candidates_fit),
    Rule(name="engram-vocabulary", says="engram_compressed_vocab_size is given",
         holds=lambda _, t: not t["engram_layer_ids"] or t["engram_compressed_vocab_size"] > 0),
    Rule(name="engram-row", says="engram_head_dim is a multiple of 128",
         holds=lambda _, t: not t["engram_layer_ids"] or _multiples(t, ("engram_head_dim",), 128)),
    Rule(name="engram-ngram", says="engram_max_ngram_size is at least 2",
         holds=lambda _, t: not t["engram_layer_ids"] or t["engram_max_ngram_size"] >= 2),
    Rule(name="pad-token", says="the pad token, also Engram's, is id 2",
         holds=lambda c, t: c["pad_token_id"] == t["engram_pad_token_id"] == 2),
    Rule(name="image-token", says="image_token_id is above 0 and inside the vocabulary",
         holds=lambda c, t: 0 < c["image_token_id"] < t["vocab_size"]),
    Rule(name="native", says="tokenizer_compatibility is native",
         holds=lambda c, _: c["tokenizer_compatibility"] == "native"),
    Rule(name="quantization", says="fp8 weights in 32x32 blocks, fp4 experts, dynamic, ue8m0",
         holds=lambda c, _: _QUANTIZATION.items() <= c["quantization_config"].items()),
    Rule(name="dtype", says="dtype is bfloat16 at the top level",
         holds=lambda c, _: c["dtype"] == "bfloat16"),
    Rule(name="architecture", says="the architecture is DeepseekV41ForCausalLM",
         holds=lambda c, _: c["architectures"] == ["DeepseekV41ForCausalLM"]),
    Rule(name="router", says="sqrtsoftplus scores, normalised top-k, noaux_tc",
         holds=lambda _, t: (t["scoring_func"], t["norm_topk_prob"], t["topk_method"])
         == ("sqrtsoftplus", True, "noaux_tc")),
    Rule(name="drafts", says="dspark keys are there even without draft stages",
         holds=lambda _, t: all(
             f"dspark_{key}" in t
             for key in ("block_size", "target_layer_ids", "markov_rank", "noise_token_id",
                         "n_routed_experts", "num_experts_per_tok"))),
)  # fmt: skip
