"""Indexer logits of decode rows over FP4 pages, beside DeepGEMM's FP8 kernel where it can be imported.

Every row has pages of its own, and calls rotate over sets of pages that do not fit in L2 together.
DeepGEMM's SM90 form reads 132 bytes per key from pages of 64: other bytes, the same logits' worth.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from h20_ops import mqa_logits_paged
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.mqa_logits_paged_cases import speed_inputs
from h20_ops.testing.peers import Peer, recorded
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import rotation_count, time_calls

RECORD = 68
ALU_OPS = 1.1  # integer instructions per key value, as compiled
ENGINE_STRIDE = 114_048  # a block of the real model, all layers
SHAPES = [(8, 131_072, 32), (64, 32_768, 32), (64, 131_072, 32), (64, 32_768, 64)]


def measure(bench: BenchRun) -> None:
    """Measure dense pages at every shape, and the engine's own page stride at one."""
    for batch, context, heads in SHAPES:
        for page_size, stride in layouts(batch, context, heads):
            count = rotation_count(batch * context * RECORD)
            sets = speed_inputs(
                batch=batch,
                context=context,
                heads=heads,
                sets=count,
                page_size=page_size,
                page_stride=stride,
            )
            ours = time_calls([bind(given) for given in sets])
            del sets
            torch.cuda.empty_cache()
            peers = deep_gemm_peers(batch, context, heads) if not stride else []
            bench.row(
                shape={"batch": batch, "context": context, "heads": heads},
                ours=ours,
                work=logits_work(batch, context, heads),
                peers=peers + recorded("logits_paged", batch, context, heads),
                record=f"68, pages of {page_size}" + (f", stride {stride}" if stride else ""),
            )


def layouts(batch: int, context: int, heads: int) -> Iterator[tuple[int, int]]:
    yield 64, 0
    if (batch, context, heads) == (64, 32_768, 32):
        yield 128, ENGINE_STRIDE


def bind(given: dict[str, Any]) -> Callable[[], torch.Tensor]:
    return lambda: mqa_logits_paged(**given)


def logits_work(rows: int, columns: int, heads: int) -> Work:
    """Work of rows x columns logits: keys read once per row, bf16 logits written."""
    pairs = float(rows) * columns
    return Work(
        flops=pairs * heads * 2 * 128,
        bytes_moved=pairs * (RECORD + 2),
        alu_ops=pairs * 128 * ALU_OPS,
        mma_speed=2.0,
    )


def deep_gemm_peers(batch: int, context: int, heads: int) -> list[Peer]:
    """Time DeepGEMM's kernel on FP8 pages of the same number of keys; nothing if it is not there."""
    try:
        deep_gemm = importlib.import_module("deep_gemm")
    except ImportError as error:
        print(f"logits_paged: no DeepGEMM beside ours ({error}); its recorded numbers stand")
        return []
    pages = context // 64
    lengths = torch.full((batch, 1), context, dtype=torch.int32, device="cuda")
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    plan = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, num_sms)
    rng = torch.Generator("cuda").manual_seed(2)
    calls = []
    for _ in range(rotation_count(batch * context * 132)):
        q = torch.randn((batch, 1, heads, 128), device="cuda", generator=rng)
        cache = torch.randint(
            0, 120, (batch * pages, 64, 1, 132), dtype=torch.uint8, device="cuda", generator=rng
        )
        cache.view(batch * pages, -1)[:, 64 * 128 :].view(torch.float32).fill_(1.0)
        order = torch.randperm(batch * pages, device="cuda", generator=rng)
        tables = order.view(batch, pages).int()
        weights = torch.randn((batch, heads), device="cuda", generator=rng)
        arguments = ((q.to(torch.float8_e4m3fn), None), cache, weights, lengths, tables, plan)
        calls.append(_bind_peer(deep_gemm, arguments, context))
    us = time_calls(calls).median_us
    return [Peer(name="DeepGEMM FP8, 132-byte pages", us=us, source="same_run")]


def _bind_peer(module: Any, arguments: tuple[Any, ...], context: int) -> Callable[[], object]:
    return lambda: module.fp8_fp4_paged_mqa_logits(*arguments, context)
