"""H1 to H8 as switches for a running engine: each puts one fault in, everywhere, and takes it out.

They are for this check alone: nothing of the product knows them. `Places` is where they act.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dih20.engine_check.swapping import changed_bytes, replaced

LN2 = 0.6931471805599453
_WIDE = 528  # bytes of an FP8 record


class NoEffect(Exception):
    """The fault changes no byte of these weights: they cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """attention: the module that calls FlashMLA's two functions. linears, experts: FP8 weights with
    their scales as `sf`; experts are (gate and up, down), both (experts, rows, columns)."""

    attention: Any
    linears: list[Any]
    experts: list[tuple[Any, Any]]
    engram: Any
    expert_buffer: Any
    rotations: list[Any]


def places_of(model: Any) -> Places:
    """Find them in the patched engine."""
    layers = model.model.layers
    linears = [
        module.weight
        for module in model.modules()
        if type(module).__name__ == "ReplicatedLinear" and module.weight.element_size() == 1
    ]
    return Places(
        attention=importlib.import_module("deepinfer.model_executor.layers.attention_backend"),
        linears=linears + [layer.self_attn.wv_weight for layer in layers],
        experts=[(layer.mlp.gate_up_proj_weight, layer.mlp.down_proj_weight) for layer in layers],
        engram=model.model.engram_runtime._buffer,
        expert_buffer=layers[0].mlp.ep_buffer,
        rotations=list(
            {id(r): r for r in (layer.self_attn.rotary_emb for layer in layers)}.values()
        ),
    )


@contextmanager
def keys_below_the_row(places: Places) -> Iterator[None]:
    """H1: keep an entry only when its row in the gathered buffer is at most the query's."""
    healthy = places.attention.flash_mla_sparse_fwd

    def sparse_fwd(q: Any, kv: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        rows = torch.arange(q.shape[0], device=indices.device, dtype=indices.dtype)
        kept = torch.where(indices <= rows.view(-1, 1, 1), indices, -1)
        return healthy(q, kv, kept, *args, **kwargs)

    with replaced(places.attention, "flash_mla_sparse_fwd", sparse_fwd):
        yield


def _decode(change: Callable[[dict[str, Any]], None]) -> Callable[[Places], Any]:
    @contextmanager
    def switch(places: Places) -> Iterator[None]:
        healthy = places.attention.flash_mla_with_kvcache

        def with_kvcache(**kwargs: Any) -> Any:
            if kwargs.get("extra_k_cache") is not None:
                change(kwargs)
            return healthy(**kwargs)

        with replaced(places.attention, "flash_mla_with_kvcache", with_kvcache):
            yield

    return switch


def _pages_as_dense(kwargs: dict[str, Any]) -> None:
    cache = kwargs["extra_k_cache"]
    size, record = cache.shape[1], cache.shape[3]
    strides = (size * record, record, record, 1)
    kwargs["extra_k_cache"] = cache.as_strided(cache.shape, strides, cache.storage_offset())


def _records_as_wide(kwargs: dict[str, Any]) -> None:
    cache, chosen = kwargs["extra_k_cache"], kwargs["extra_indices_in_kvcache"]
    pages, size = cache.shape[0] - 2, cache.shape[1]  # so that no read leaves the memory
    shape, strides = (pages, size, 1, _WIDE), (cache.stride(0), _WIDE, _WIDE, 1)
    kwargs["extra_k_cache"] = cache.as_strided(shape, strides, cache.storage_offset())
    kwargs["extra_indices_in_kvcache"] = torch.where(chosen < pages * size, chosen, -1)


def _sink(change: Callable[[Any], Any]) -> Callable[[Places], Any]:
    @contextmanager
    def switch(places: Places) -> Iterator[None]:
        with ExitStack() as stack:
            for name in ("flash_mla_sparse_fwd", "flash_mla_with_kvcache"):
                healthy = getattr(places.attention, name)

                def changed(*args: Any, _healthy: Any = healthy, **kwargs: Any) -> Any:
                    kwargs["attn_sink"] = change(kwargs["attn_sink"])
                    return _healthy(*args, **kwargs)

                stack.enter_context(replaced(places.attention, name, changed))
            yield

    return switch


pages_as_dense = _decode(_pages_as_dense)
records_as_wide = _decode(_records_as_wide)
sink_missing = _sink(lambda sink: torch.full_like(sink, float("-inf")))
sink_in_base_2 = _sink(lambda sink: sink * LN2)


@contextmanager
def engram_scales_as_fp32(places: Places) -> Iterator[None]:
    """H5: four packed exponents of an Engram row, taken for one fp32 scale over 128 channels."""
    buffer = places.engram

    def hook(layer: int, indices: Any) -> Callable[[], Any]:
        def look_up() -> Any:
            rows = indices.flatten().clamp_min(0).long()
            codes = buffer._tables[layer].view(torch.uint8).index_select(0, rows)
            scales = buffer._packed[layer].index_select(0, rows).view(torch.float32)
            wide = codes.shape[1] // scales.shape[1]
            values = codes.view(torch.float8_e4m3fn).float().unflatten(1, (-1, wide))
            return (values * scales.unsqueeze(-1)).bfloat16().reshape(indices.shape[0], -1)

        return look_up

    with replaced(buffer, "_hook", hook):
        yield


@contextmanager
def linear_scales_as_fp32(places: Places) -> Iterator[None]:
    """H5: the same for every FP8 linear: the bytes of four exponents under the type of a scale."""
    with ExitStack() as stack:
        for weight in places.linears:
            exponents = (weight.sf.float().log2().round() + 127).to(torch.uint8)
            packed = exponents.unsqueeze(-1).expand(*exponents.shape, 4).contiguous()
            misread = packed.view(torch.float32).squeeze(-1)
            stack.enter_context(changed_bytes(weight.sf, misread))
        yield


@contextmanager
def expert_rows_out_of_step(places: Places) -> Iterator[None]:
    """H6: rows of experts aligned to 64 where the grouped product takes them for aligned to 128."""
    healthy = places.expert_buffer.dispatch

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        kwargs["expert_alignment"] = kwargs["expert_alignment"] // 2
        return healthy(*args, **kwargs)

    with replaced(places.expert_buffer, "dispatch", dispatch):
        yield


@contextmanager
def gate_and_up_exchanged(places: Places) -> Iterator[None]:
    """H7: w3 above w1."""
    with ExitStack() as stack:
        for both, _ in places.experts:
            for tensor in (both.data.view(torch.uint8), both.sf):
                stack.enter_context(
                    changed_bytes(tensor, tensor.roll(tensor.shape[1] // 2, dims=1))
                )
        yield


@contextmanager
def expert_scales_transposed(places: Places) -> Iterator[None]:
    """H7: scales in the order of (columns, rows)."""
    changed = False
    with ExitStack() as stack:
        for weight in (each for pair in places.experts for each in pair):
            other = weight.sf.mT.contiguous().reshape(weight.sf.shape)
            changed = changed or not torch.equal(other, weight.sf)
            stack.enter_context(changed_bytes(weight.sf, other))
        if not changed:
            raise NoEffect("all blocks of an expert have the same scale")
        yield


def _rotation_back(times: int) -> Callable[[Places], Any]:
    @contextmanager
    def switch(places: Places) -> Iterator[None]:
        with ExitStack() as stack:
            for rotation in places.rotations:
                healthy = rotation.forward

                def forward(*args: Any, _healthy: Any = healthy, **kwargs: Any) -> Any:
                    result = None
                    for _ in range(times if kwargs.get("conjugate") else 1):
                        result = _healthy(*args, **kwargs)
                    return result

                stack.enter_context(replaced(rotation, "forward", forward))
            yield

    return switch


rotation_back_left_out = _rotation_back(0)
rotation_back_twice = _rotation_back(2)
