"""Every tensor of the released checkpoint's text model: name, shape and how it is stored.

Reader, writer and random test weights all go by this list; v41-formats of the release is its source.
Vision and draft tensors are listed by the reader as present, and are not part of the text model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from v41.config import ModelConfig
from v41.engram import table_primes

Storage = Literal["bf16", "fp32", "fp8", "fp4", "engram"]


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One logical tensor.

    storage: bf16 and fp32 are one tensor. fp8 is `name` e4m3 (N, K) with a `.scale` e8m0 per 32x32.
    fp4 is `name` int8 (N, K/2), two codes a byte, with a `.scale` e8m0 (N, K/32). engram is e4m3
    (rows, dim) with a `.scale` e8m0 (rows, dim/32).
    shape: of the values, (N, K) also for fp4.
    """

    name: str
    shape: tuple[int, ...]
    storage: Storage

    @property
    def scale_name(self) -> str | None:
        """Give the name of the scale tensor, or None for tensors without one."""
        if self.storage in ("bf16", "fp32"):
            return None
        return self.name.removesuffix(".weight") + ".scale"

    @property
    def scale_shape(self) -> tuple[int, ...] | None:
        if self.storage == "fp8":
            return tuple(-(-size // 32) for size in self.shape)
        if self.storage in ("fp4", "engram"):
            return (self.shape[0], self.shape[1] // 32)
        return None


def text_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Give every tensor of the text model, in causal order."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield TensorSpec(name="embed.weight", shape=(vocab, hidden), storage="bf16")
    for index in range(config.num_hidden_layers):
        yield from _layer(config, index)
    yield TensorSpec(name="norm.weight", shape=(hidden,), storage="bf16")
    yield TensorSpec(name="head.weight", shape=(vocab, hidden), storage="bf16")


def _layer(config: ModelConfig, index: int) -> Iterator[TensorSpec]:
    prefix, hidden, streams = f"layers.{index}", config.hidden_size, config.hc_mult
    kind = config.layer(index)
    if kind.engram:
        yield from _engram(config, index)
    for part in ("attn", "ffn"):
        mixes = streams * (streams + 2)
        fn = (mixes, streams * hidden)
        yield TensorSpec(name=f"{prefix}.hc_{part}_fn", shape=fn, storage="fp32")
        yield TensorSpec(name=f"{prefix}.hc_{part}_base", shape=(mixes,), storage="fp32")
        yield TensorSpec(name=f"{prefix}.hc_{part}_scale", shape=(3,), storage="fp32")
        yield TensorSpec(name=f"{prefix}.{part}_norm.weight", shape=(hidden,), storage="bf16")
    yield from _attention(config, index)
    yield from _ffn(config, f"{prefix}.ffn")


def _attention(config: ModelConfig, index: int) -> Iterator[TensorSpec]:
    site, kind = f"layers.{index}.attn", config.layer(index)
    hidden, dim, heads = config.hidden_size, config.head_dim, config.num_attention_heads
    low, groups, rank = config.q_lora_rank, config.o_groups, config.o_lora_rank
    fp8 = {
        "wq_a": (low, hidden),
        "wq_b": (heads * dim, low),
        "wkv": (dim, hidden),
        "wo_a": (groups * rank, heads // groups * dim),
        "wo_b": (hidden, groups * rank),
    }
    plain: dict[str, tuple[int, ...]] = {"q_norm": (low,), "kv_norm": (dim,)}
    index_dim, index_heads = config.index_head_dim, config.index_n_heads
    if kind.owns_kv:
        plain |= {"compressor.wkv": (dim, hidden), "compressor.norm": (dim,)}
        if kind.ratio == 2:
            plain |= {"compressor.wgate": (dim, hidden)}
        plain |= {"indexer.wk": (index_dim, dim), "indexer.k_norm": (index_dim,)}
    if kind.owns_index:
        fp8 |= {"indexer.wq_b": (index_heads * index_dim, low)}
        plain |= {"indexer.weights_proj": (index_heads, hidden)}
    for name, shape in fp8.items():
        yield TensorSpec(name=f"{site}.{name}.weight", shape=shape, storage="fp8")
    for name, plain_shape in plain.items():
        yield TensorSpec(name=f"{site}.{name}.weight", shape=plain_shape, storage="bf16")
    yield TensorSpec(name=f"{site}.attn_sink", shape=(heads,), storage="fp32")


def _ffn(config: ModelConfig, site: str) -> Iterator[TensorSpec]:
    hidden, inter, experts = (
        config.hidden_size,
        config.moe_intermediate_size,
        config.n_routed_experts,
    )
    yield TensorSpec(name=f"{site}.gate.weight", shape=(experts, hidden), storage="bf16")
    for bias in ("bias", "bias_vl"):
        yield TensorSpec(name=f"{site}.gate.{bias}", shape=(experts,), storage="fp32")
    shapes = {"w1": (inter, hidden), "w3": (inter, hidden), "w2": (hidden, inter)}
    for name, shape in shapes.items():
        full = f"{site}.shared_experts.{name}.weight"
        yield TensorSpec(name=full, shape=shape, storage="fp8")
    for expert in range(experts):
        for name, shape in shapes.items():
            full = f"{site}.experts.{expert}.{name}.weight"
            yield TensorSpec(name=full, shape=shape, storage="fp4")


def _engram(config: ModelConfig, index: int) -> Iterator[TensorSpec]:
    site, hidden, streams = f"layers.{index}.engram", config.hidden_size, config.hc_mult
    primes = table_primes(config)[index]
    rows = sum(prime for heads in primes for prime in heads)
    width = sum(len(heads) for heads in primes) * config.engram_head_dim
    dim = config.engram_head_dim
    yield TensorSpec(name=f"{site}.embed.weight", shape=(rows, dim), storage="engram")
    yield TensorSpec(
        name=f"{site}.wkv.weight", shape=((streams + 1) * hidden, width), storage="fp8"
    )
    for name in ("q_weight", "k_weight"):
        yield TensorSpec(name=f"{site}.{name}", shape=(streams, hidden), storage="bf16")
