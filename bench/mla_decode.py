"""Sparse paged MLA decode: time at the shapes with a number to reach, and beside what can be loaded.

Caches are far larger than L2 and calls rotate over index rows, so records come from memory. Peers
are recorded ones, and vLLM's build of FlashMLA if H20_OPS_VLLM_FLASHMLA names its `_flashmla_C`
library, on the same keys in V4's 584-byte records, the only form its SM90 kernel reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from h20_ops import sparse_mla_decode
from h20_ops.kv_cache import V41_FP4, V41_FP8
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.cases_decode import DecodeInputs
from h20_ops.testing.compare import normalised_difference
from h20_ops.testing.op_libraries import as_v4_cache
from h20_ops.testing.peers import Peer, recorded_decode
from h20_ops.testing.roofline import Work, mla_work
from h20_ops.testing.timing import rotation_count, time_calls

HEADS = 64
SLOTS = 1 << 20  # of either cache: 0.55 GB of FP8 records, 0.93 GB with FP4 pages' strides
RING, RING_STRIDE = 134, 134 * 528 + 1056
PAGE, PAGE_STRIDE = 128, 114_048
ALU_OPS_FP8, ALU_OPS_FP4 = 2.25, 2.5  # integer and bf16 instructions per value, as compiled
SHAPES = [(b, 1024, 0) for b in (1, 8, 64, 128)]
SHAPES += [(b, 128, 512) for b in (1, 8, 32, 64, 128, 256, 512)]


def measure(bench: BenchRun) -> None:
    """Measure every shape with random indices, and the model's own with overlapping neighbours."""
    library = os.environ.get("H20_OPS_VLLM_FLASHMLA")
    if library:
        torch.ops.load_library(library)
    rng = torch.Generator("cuda").manual_seed(1)
    window = _cache(SLOTS // RING, RING, 528, RING_STRIDE, rng)
    window[..., 512:] = 120  # ue8m0 scales
    compressed = _cache(SLOTS // PAGE, PAGE, 288, PAGE_STRIDE, rng)
    compressed[..., 256:] = 0x30  # e4m3 scales
    for batch, topk, extra_topk in SHAPES:
        work = _work(batch, topk, extra_topk)
        count = rotation_count(int(work.bytes_moved))
        for kind in ("random", "neighbours") if extra_topk and batch == 64 else ("random",):
            sets = [
                _inputs(window, compressed, (batch, topk, extra_topk), kind, rng)
                for _ in range(count)
            ]
            ours = time_calls([_bind(inputs) for inputs in sets])
            found = [_vllm_flash_mla(sets)] if library else []
            shape = {"batch": batch, "topk": topk, "extra_topk": extra_topk, "heads": HEADS}
            bench.row(
                shape=shape,
                ours=ours,
                work=work,
                peers=found + recorded_decode(**shape),
                indices=kind,
                record="528+288" if extra_topk else "528",
            )


def _cache(
    pages: int, page_size: int, record: int, page_stride: int, rng: torch.Generator
) -> torch.Tensor:
    """uint8 (pages, page_size, 1, record) of random value bytes, none of them NaN as e4m3."""
    raw = torch.randint(
        0, 256, (pages * page_stride,), dtype=torch.uint8, device="cuda", generator=rng
    )
    raw[(raw & 0x7F) == 0x7F] = 0x3C
    return raw.as_strided((pages, page_size, 1, record), (page_stride, record, record, 1))


def _inputs(
    window: torch.Tensor,
    compressed: torch.Tensor,
    shape: tuple[int, int, int],
    kind: str,
    rng: torch.Generator,
) -> DecodeInputs:
    """One call: 1024 keys of anywhere, or a ring's last 128 and 512 of the compressed cache."""
    batch, topk, extra_topk = shape
    rings = window.shape[0]
    if extra_topk:
        ring = torch.randint(0, rings, (batch, 1, 1), device="cuda", generator=rng)
        newest = torch.randint(0, RING, (batch, 1, 1), device="cuda", generator=rng)
        indices = ring * RING + (newest - torch.arange(topk, device="cuda")) % RING
    else:
        indices = torch.randint(0, rings * RING, (batch, 1, topk), device="cuda", generator=rng)
    slots = compressed.shape[0] * PAGE
    extra = torch.randint(0, slots, (batch, 1, max(1, extra_topk)), device="cuda", generator=rng)
    if kind == "neighbours":  # row r + 1 lists four fifths of what row r lists
        pool = torch.randint(0, slots, (extra_topk * (batch + 1),), device="cuda", generator=rng)
        start = torch.arange(batch, device="cuda").view(batch, 1, 1) * (extra_topk // 5)
        extra = pool[start + torch.arange(extra_topk, device="cuda")]
    q = torch.randn((batch, 1, HEADS, 512), device="cuda", generator=rng).clamp_(-1, 1)
    return DecodeInputs(
        q=q.bfloat16(),
        k_cache=window,
        indices=indices.to(torch.int32),
        sm_scale=512**-0.5,
        layout=V41_FP8,
        attn_sink=torch.randn(HEADS, device="cuda", generator=rng),
        topk_length=None,
        extra_k_cache=compressed if extra_topk else None,
        extra_layout=V41_FP4 if extra_topk else None,
        extra_indices=extra.to(torch.int32) if extra_topk else None,
    )


def _bind(x: DecodeInputs) -> Callable[[], torch.Tensor]:
    return lambda: sparse_mla_decode(x.q, x.k_cache, x.indices, **x.kwargs())[0]


def _vllm_flash_mla(sets: list[DecodeInputs]) -> Peer:
    """Time FlashMLA's SM90 kernel; its scheduling is done once, outside what is timed."""
    calls = [_vllm_call(inputs) for inputs in sets]
    # The V4 record keeps 64 channels in bf16 and shares scales by 64: close, not equal.
    difference = normalised_difference(calls[0]().view(-1, HEADS, 512), _bind(sets[0])()[:, 0])
    assert difference < 1e-2, f"the peer's output differs: normalised difference {difference}"
    us = time_calls(calls).median_us
    return Peer(name="FlashMLA SM90 (vLLM), 584-byte records", us=us, source="same_run")


def _vllm_call(x: DecodeInputs) -> Callable[[], torch.Tensor]:
    cache = as_v4_cache(x.k_cache, x.indices, x)
    extra = None if x.extra_k_cache is None else x.extra_indices
    extra_cache = None if extra is None else as_v4_cache(x.extra_k_cache, extra, x)

    def call(metadata: Any, num_splits: Any) -> Any:
        scopes = (x.q, cache, x.indices, None, x.attn_sink)
        return torch.ops._flashmla_C.sparse_decode_fwd(
            *scopes, metadata, num_splits, extra_cache, extra, None, 512, x.sm_scale, None
        )

    _, _, metadata, num_splits = call(None, None)
    return lambda: call(metadata, num_splits)[0]


def _work(batch: int, topk: int, extra_topk: int) -> Work:
    keys = topk + extra_topk
    records = topk * 528 + extra_topk * 288 + keys * 4
    alu_ops = (topk * ALU_OPS_FP8 + extra_topk * ALU_OPS_FP4) / keys
    return mla_work(
        rows=batch,
        heads=HEADS,
        topk=keys,
        bytes_moved=float(batch * (records + 2 * HEADS * 512 * 2 + HEADS * 4)),
        dequantised_values=float(batch * keys * 512),
        alu_ops_per_value=alu_ops,
    )
