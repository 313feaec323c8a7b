"""Where the engine calls operators: each name is wrapped in the module that calls it."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

from dih20.layer_times.recording import Recorder, alias

_ENGINE = "deepinfer.model_executor."
_V4 = f"{_ENGINE}models.v4_modules."
_FUSED = "fused_norm_rope_hadamard_cast_store_kvcache"

# module -> names; a number behind a name is the argument that the operator changes
_OPERATORS: dict[str, tuple[str, ...]] = {
    f"{_V4}attn": (_FUSED, "kv_index_cat", "load_paged_kv_cache", "store_kv_cache"),
    f"{_V4}index_attn": (
        _FUSED,
        "load_paged_kv_cache",
        "topk",
        "candidate_block_max",
        "get_candidate_compact_lens",
        "restore_candidate_indices_inplace 0",
        "convert_kv_index 0",
    ),
    f"{_V4}compress": (
        _FUSED,
        "compress_and_update_state_prefill",
        "compress_and_update_state_decode",
    ),
    f"{_V4}hc": (
        "expand_to_mhc",
        "mhc_post",
        "mhc_pre_apply_mix",
        "mhc_pre_norm_fn",
        "mhc_pre_split_mixes",
        "sinkhorn_normalize",
    ),
    f"{_V4}mlp": ("moe_topk_gate", "swiglu_forward_and_per_token_cast"),
    f"{_ENGINE}layers.layernorm": ("norm",),
    f"{_ENGINE}layers.linear": ("bf16_gemm_nt",),
    f"{_ENGINE}layers.rotary_embedding": ("apply_rotary",),
    f"{_ENGINE}layers.attention_backend": ("flash_mla_sparse_fwd", "flash_mla_with_kvcache"),
    "tile_kernels.quant": ("per_token_cast",),
    "tile_kernels.engram": ("engram_gate_fwd",),
    "h20_ops.sm90_contracts": (
        "fp8_gemm_nt",
        "m_grouped_fp8_gemm_nt_contiguous",
        "fp8_einsum_bhr_hdr_bhd",
    ),
    "h20_ops.mqa_logits_prefill": ("mqa_logits_prefill",),
    "h20_ops.mqa_logits_paged": ("mqa_logits_paged",),
}
_PARTS = {  # class whose forward is a part of a layer -> the part's name
    f"{_V4}attn:V4Attention.forward": "attention",
    f"{_V4}index_attn:MQA.forward": "index",
    f"{_V4}compress:Compressor.forward_store_kv_cache": "compressor",
    f"{_V4}mlp:DeepseekMoE.forward": "experts",
    f"{_V4}mlp:DeepseekMoE.shared_forward": "shared",
    f"{_V4}engram:Engram.forward": "engram",
    f"{_V4}hc:HCLayerMixin.attn_norm_forward": "attention site",
    f"{_V4}hc:HCLayerMixin.ffn_norm_forward": "experts site",
}

_OWN_NAMES = (
    f"{_ENGINE}layers.linear:ReplicatedLinear.forward",
    f"{_ENGINE}layers.layernorm:RMSNorm.forward",
)
_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def install(recorder: Recorder) -> None:
    """Wrap operators, parts and layers; for the rest of the process."""
    for module_name, names in _OPERATORS.items():
        module = importlib.import_module(module_name)
        for entry in names:
            name, *kept = entry.split()
            function = recorder.operator(name, getattr(module, name), tuple(map(int, kept)))
            setattr(module, name, function)
    for place, part in _PARTS.items():
        _wrap(place, _part_namer(recorder, part))
    for place in _OWN_NAMES:
        _wrap(place, lambda function: _named(recorder, function, _own_name))
    for name in ("dispatch", "combine"):
        _wrap(f"h20_ops.local_buffers.expert:LocalEPBuffer.{name}", _method(recorder, name))
    _wrap(
        "h20_ops.local_buffers.engram:LocalEngramBuffer._hook",
        lambda hook: lambda itself, *arguments: recorder.operator("rows", hook(itself, *arguments)),
    )
    _wrap(
        f"{_ENGINE}models.decoder_layer:DeepseekDecoderLayer.forward",
        lambda function: _layer(recorder, function),
    )


def name_modules(model: Any) -> None:
    """Let linears and norms know what they are called in their layer."""
    for name, module in model.named_modules():
        module.name_in_layer = name.rsplit(".", 1)[-1]


def _part_namer(recorder: Recorder, part: str) -> _Wrapper:
    return lambda function: _named(recorder, function, lambda _: part)


def _method(recorder: Recorder, name: str) -> _Wrapper:
    return lambda function: recorder.method(name, function)


def _own_name(module: Any) -> str:
    return str(getattr(module, "name_in_layer", "linear"))


def _wrap(place: str, make: _Wrapper) -> None:
    module_name, path = place.split(":")
    class_name, method = path.split(".")
    owner = getattr(importlib.import_module(module_name), class_name)
    setattr(owner, method, make(getattr(owner, method)))


def _named(
    recorder: Recorder, function: Callable[..., Any], name: Callable[[Any], str]
) -> Callable[..., Any]:
    def named(itself: Any, *arguments: Any, **keywords: Any) -> Any:
        with recorder.inside(name(itself)):
            return function(itself, *arguments, **keywords)

    return named


def _layer(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep each layer as one call too; what it empties or changes is copied for every replay."""

    def layer(
        itself: Any, hidden: Any, cache: Any, metadata: Any, residual: Any, **keywords: Any
    ) -> Any:
        given = hidden.move() if hasattr(hidden, "move") else hidden
        runtime = keywords.pop("cross_layer_runtime")
        if not recorder.active:
            return function(
                itself, given, cache, metadata, residual, cross_layer_runtime=runtime, **keywords
            )
        kept, before, shared = alias(given), copy.copy(residual), copy.copy(runtime)

        def again() -> Any:
            return function(
                itself,
                alias(kept),
                cache,
                metadata,
                copy.copy(before),
                cross_layer_runtime=copy.copy(shared),
                **keywords,
            )

        recorder.layers[itself.layer_idx] = again
        recorder.layer = itself.layer_idx
        try:
            return function(
                itself, given, cache, metadata, residual, cross_layer_runtime=runtime, **keywords
            )
        finally:
            recorder.layer = -1

    return layer
