"""Prefill indexer logits: time of a whole call, expansion of FP4 to FP8 included, beside DeepGEMM's FP8.

DeepGEMM runs in the same process where it can be imported, on the same values as e4m3 with scales of
its own; it is given them expanded, writes fp32 and is timed without that expansion. Ours writes bf16,
and fp32 in rows of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from h20_ops import mqa_logits_prefill
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.compare import normalised_difference
from h20_ops.testing.mqa_logits_prefill_cases import (
    LogitsCase,
    LogitsInputs,
    make_logits,
    neighbour_candidates,
)
from h20_ops.testing.peers import Peer, recorded
from h20_ops.testing.roofline import Work
from h20_ops.testing.timing import Timing, time_calls
from h20_ops.torch_ref.index_values import decode_index

ROUNDS = 3
BLOCK, CANDIDATES = 8, 2048
CANDIDATE_SHAPES = ((4096, 131_072, 32), (4096, 32_768, 32), (64, 131_072, 32))
SETS = 2  # one output alone is several L2 sizes
Call = Callable[[], object]
# rows, keys, heads, ranges, out
SHAPES: tuple[tuple[int, int, int, str, str], ...] = (
    (4096, 32_768, 32, "full", "bf16"),
    (4096, 32_768, 32, "full", "fp32"),
    (4096, 32_768, 32, "causal", "bf16"),
    (4096, 32_768, 64, "full", "bf16"),
    (2048, 8192, 32, "causal", "bf16"),
    (8192, 65_536, 32, "causal", "bf16"),
    (64, 131_072, 32, "full", "bf16"),
)


def measure(bench: BenchRun) -> None:
    """Measure every shape, alternating with DeepGEMM where it is there."""
    deep_gemm = _deep_gemm()
    for rows, keys, heads, ranges, out in SHAPES:
        dtype = torch.bfloat16 if out == "bf16" else torch.float32
        case = LogitsCase(rows=rows, keys=keys, heads=heads, ranges=ranges)  # type: ignore[arg-type]
        sets = [make_logits(case, "cuda") for _ in range(SETS)]
        contenders = [[_ours(inputs, dtype) for inputs in sets]]
        if deep_gemm is not None:
            contenders.append([_theirs(deep_gemm, inputs) for inputs in sets])
            _check_agree(sets[0], contenders[0][0], contenders[1][0])
        ours, *others = _alternate(contenders)
        peers = [Peer(name="DeepGEMM, FP8", us=t.median_us, source="same_run") for t in others]
        if (ranges, out) == ("full", "bf16"):
            peers += recorded("logits_prefill", rows, keys, heads)
        bench.row(
            shape={"rows": rows, "context": keys, "heads": heads},
            ours=ours,
            work=_work(sets[0], dtype),
            peers=peers,
            kind=ranges,
            dtype=out,
        )
        del sets, contenders
        torch.cuda.empty_cache()
    for rows, keys, heads in CANDIDATE_SHAPES:
        _measure_candidates(bench, rows, keys, heads)


def _measure_candidates(bench: BenchRun, rows: int, keys: int, heads: int) -> None:
    """Candidates whose rows keep 80 % of the row before, beside our dense logits of all keys."""
    dense, sparse = [], []
    for seed in range(SETS):
        case = LogitsCase(rows=rows, keys=keys, heads=heads, ranges="full", seed=seed)
        dense.append(make_logits(case, "cuda"))
        rng = torch.Generator("cuda").manual_seed(seed)
        ids = neighbour_candidates(min(rows, 512), keys // BLOCK, CANDIDATES, rng)
        ids = ids.repeat(-(-rows // ids.shape[0]), 1)[:rows]
        sparse.append(replace(dense[-1], candidate_blocks=ids, candidate_block_size=BLOCK))
    calls = [[_ours(inputs, torch.bfloat16) for inputs in sets] for sets in (sparse, dense)]
    ours, all_keys = _alternate(calls)
    pairs = float(rows * CANDIDATES * BLOCK)
    moved = rows * (heads * 70 + CANDIDATES * 4) + keys * 68 + pairs * 2
    bench.row(
        shape={"rows": rows, "context": keys, "heads": heads},
        ours=ours,
        work=Work(flops=pairs * heads * 2 * 128, bytes_moved=moved, mma_speed=2.0),
        peers=[Peer(name="all keys, ours", us=all_keys.median_us, source="same_run")],
        kind=f"{CANDIDATES} candidates",
        dtype="bf16",
    )


def _ours(inputs: LogitsInputs, dtype: torch.dtype) -> Call:
    return lambda: mqa_logits_prefill(**inputs.kwargs(), out_dtype=dtype)


def _theirs(deep_gemm: Any, inputs: LogitsInputs) -> Call:
    """The same call on e4m3 values: a power of two per query head and per key, exact here."""
    q, q_scale = _as_e4m3(decode_index(inputs.q, inputs.q_sf))
    k, k_scale = _as_e4m3(decode_index(inputs.k, inputs.k_sf))
    weights = inputs.weights.float() * q_scale
    return lambda: deep_gemm.fp8_fp4_mqa_logits(
        (q, None), (k, k_scale), weights, inputs.ks, inputs.ke, max_seqlen_k=inputs.max_kv_len
    )


def _as_e4m3(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = torch.exp2(torch.floor(torch.log2(values.abs().amax(-1).clamp_min(1e-30))) - 7)
    return (values / scale.unsqueeze(-1)).to(torch.float8_e4m3fn), scale


def _check_agree(inputs: LogitsInputs, ours: Call, theirs: Call) -> None:
    got, other = ours(), theirs()
    assert isinstance(got, torch.Tensor) and isinstance(other, torch.Tensor)
    columns = torch.arange(got.shape[1], device=got.device)
    valid = columns < (inputs.ke - inputs.ks).unsqueeze(1)
    difference = normalised_difference(got.float()[valid], other[:, : got.shape[1]].float()[valid])
    assert difference < 1e-5, f"DeepGEMM's logits differ: normalised difference {difference}"


def _alternate(contenders: Sequence[Sequence[Call]]) -> list[Timing]:
    """Time all in turn, ROUNDS times, and return each one's middle round."""
    rounds: list[list[Timing]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for calls, timings in zip(contenders, rounds, strict=True):
            timings.append(time_calls(calls, replays=10))
    return [sorted(timings, key=lambda t: t.median_us)[ROUNDS // 2] for timings in rounds]


def _work(inputs: LogitsInputs, dtype: torch.dtype) -> Work:
    pairs = float((inputs.ke - inputs.ks).clamp(0).sum())
    rows, heads = inputs.q.shape[:2]
    moved = rows * heads * 70 + inputs.k.shape[0] * 68 + pairs * dtype.itemsize
    return Work(flops=pairs * heads * 2 * 128, bytes_moved=float(moved), mma_speed=2.0)


def _deep_gemm() -> Any | None:
    try:
        import deep_gemm  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("logits_prefill: no deep_gemm here, its recorded number stands in")
        return None
    return deep_gemm
