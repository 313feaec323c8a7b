"""Which tensor of the running engine holds which of the checkpoint's, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from v41.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Held:
    """One tensor of the engine and the released tensors in it, one below the other.

    at: its path from the model. transposed: the engine's experts, (experts, rows, columns), from
    several per expert. optional: not every engine keeps it under this name.
    """

    at: str
    parts: tuple[str, ...]
    experts: int = 0


def held_tensors(config: ModelConfig) -> Iterator[Held]:
    """Give every tensor of the patched engine that can be compared value by value."""
    yield Held(at="model.embed_tokens.weight", parts=("embed.weight",))
    yield Held(at="lm_head.weight", parts=("head.weight",))
    yield Held(at="model.output_norm.weight", parts=("norm.weight",))
    for index in range(config.num_hidden_layers):
        engine, ours = f"model.layers.{index}", f"layers.{index}"
        yield from _attention(config, index, f"{engine}.self_attn", f"{ours}.attn")
        yield from _experts(config, f"{engine}.mlp", f"{ours}.ffn")
        for part in ("attn", "ffn"):
            yield Held(
                at=f"{engine}.{part}_layernorm.weight", parts=(f"{ours}.{part}_norm.weight",)
            )
            for theirs, name in (("", "base"), ("_fn", "fn"), ("_scale", "scale")):
                yield Held(at=f"{engine}.hc_{part}{theirs}", parts=(f"{ours}.hc_{part}_{name}",))
        if config.layer(index).engram:
            at = f"{engine}.engram.fused_kv_projection.weight"
            yield Held(at=at, parts=(f"{ours}.engram.wkv.weight",))


def _attention(config: ModelConfig, index: int, engine: str, ours: str) -> Iterator[Held]:
    kind = config.layer(index)
    query: tuple[str, ...] = (f"{ours}.wq_b.weight",)
    if kind.owns_index:
        query += (f"{ours}.indexer.wq_b.weight",)
    yield Held(
        at=f"{engine}.q_a_kv_swa_proj.weight", parts=(f"{ours}.wq_a.weight", f"{ours}.wkv.weight")
    )
    yield Held(at=f"{engine}.q_b_proj.weight", parts=query)
    yield Held(at=f"{engine}.wv_weight", parts=(f"{ours}.wo_a.weight",))
    yield Held(at=f"{engine}.out_proj.weight", parts=(f"{ours}.wo_b.weight",))
    yield Held(at=f"{engine}.q_a_norm.weight", parts=(f"{ours}.q_norm.weight",))
    yield Held(at=f"{engine}.kv_swa_norm.weight", parts=(f"{ours}.kv_norm.weight",))
    yield Held(at=f"{engine}.attn_sink_params", parts=(f"{ours}.attn_sink",))
    if kind.owns_kv:
        norms = {
            "PackedWkv.norm": "compressor.norm",
            "index_attn.index_k_module.norm": "indexer.k_norm",
        }
        for theirs, name in norms.items():
            yield Held(at=f"{engine}.{theirs}.weight", parts=(f"{ours}.{name}.weight",))
        at = f"{engine}.index_attn.index_k_module.linear.weight"
        yield Held(at=at, parts=(f"{ours}.indexer.wk.weight",))


def _experts(config: ModelConfig, engine: str, ours: str) -> Iterator[Held]:
    yield Held(at=f"{engine}.gate.weight", parts=(f"{ours}.gate.weight",))
    yield Held(at=f"{engine}.e_score_correction_bias", parts=(f"{ours}.gate.bias",))
    both, down = ("w1", "w3"), ("w2",)
    for at, names in (("shared_gate_up_proj", both), ("shared_down_proj", down)):
        parts = tuple(f"{ours}.shared_experts.{name}.weight" for name in names)
        yield Held(at=f"{engine}.{at}.weight", parts=parts)
    count = config.n_routed_experts
    for at, names in (("gate_up_proj_weight", both), ("down_proj_weight", down)):
        parts = tuple(
            f"{ours}.experts.{expert}.{name}.weight" for expert in range(count) for name in names
        )
        yield Held(at=f"{engine}.{at}", parts=parts, experts=count)


def compare_held(model: Any, held: Held, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Give elements, how many differ, and the largest difference relative to the largest value.

    weights: fp32 as mode sm90 holds them.
    Raises AttributeError, KeyError or AssertionError when there is no such tensor, or of another shape.
    """
    import torch

    got = values_of(_at(model, held.at))
    want = torch.cat([weights[name].reshape(-1, weights[name].shape[-1]) for name in held.parts])
    assert got.numel() == want.numel(), (
        f"{tuple(got.shape)} has {got.numel()} values, {len(held.parts)} released tensors have {want.numel()}"
    )
    got, want = got.flatten().cpu(), want.flatten()
    gap = (got - want).abs()
    scale = float(want.abs().max()) or 1.0
    return {
        "elements": want.numel(),
        "differ": int((gap != 0).sum()),
        "largest": float(gap.max()) / scale,
    }


def values_of(tensor: Any) -> Any:
    """Give fp32 values: an 8-bit tensor times its block scales, `sf`, whatever their block is."""
    import torch

    if tensor.element_size() != 1:
        return tensor.detach().float()
    scale = tensor.sf.detach()
    assert scale.dtype == torch.float32, f"scales are {scale.dtype}: packed ones are no numbers"
    data = tensor.detach().float()
    for dim in (-2, -1):
        scale = scale.repeat_interleave(data.shape[dim] // scale.shape[dim], dim=dim)
    return data * scale


def _at(model: Any, path: str) -> Any:
    found = model
    for name in path.split("."):
        found = (
            found[int(name)]
            if name.isdigit() and hasattr(found, "__getitem__")
            else getattr(found, name)
        )
    return found
