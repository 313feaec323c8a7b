"""Sparse MLA prefill: time at the shapes with a number to reach, and beside what can be loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from h20_ops import sparse_mla_prefill
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.cases_prefill import PrefillInputs, make_prefill, speed_cases
from h20_ops.testing.peers import Peer, recorded_prefill
from h20_ops.testing.roofline import mla_work
from h20_ops.testing.timing import Timing, rotation_count, time_calls


def measure(bench: BenchRun) -> None:
    """Measure every speed case with random indices, and one with overlapping neighbours."""
    for case in speed_cases():
        # q alone is several L2 sizes, so few sets are enough; kv is meant to stay in L2.
        bytes_moved = _bytes(case.s_q, case.s_kv, case.topk, case.heads)
        count = min(3, rotation_count(int(bytes_moved)))
        sets = [make_prefill(case, "cuda") for _ in range(count)]
        for number, inputs in enumerate(sets):
            _fresh_values(inputs, number)
        kinds = ["random"]
        if (case.topk, case.s_kv, case.heads) == (640, 8192, 64):
            kinds.append("neighbours")
        for kind in kinds:
            if kind == "neighbours":
                for inputs in sets:
                    inputs.indices.copy_(_neighbours(case.s_q, case.s_kv, case.topk))
            else:
                for number, inputs in enumerate(sets):
                    inputs.indices.copy_(_random(case.s_q, case.s_kv, case.topk, number))
            timing = time_calls([_call(inputs) for inputs in sets], replays=20)
            shape = {"s_q": case.s_q, "s_kv": case.s_kv, "topk": case.topk, "heads": case.heads}
            bench.row(
                shape=shape,
                ours=timing,
                work=mla_work(
                    rows=case.s_q, heads=case.heads, topk=case.topk, bytes_moved=bytes_moved
                ),
                peers=_peers(sets, case.s_q, case.topk, case.heads),
                indices=kind,
            )
        del sets
        torch.cuda.empty_cache()


def _call(inputs: PrefillInputs) -> Callable[[], object]:
    return lambda: sparse_mla_prefill(
        inputs.q,
        inputs.kv,
        inputs.indices,
        sm_scale=inputs.sm_scale,
        attn_sink=inputs.attn_sink,
    )


def _peers(sets: list[PrefillInputs], s_q: int, topk: int, heads: int) -> list[Peer]:
    """FlashMLA in this run if it can be imported here, and the recorded numbers."""
    peers = recorded_prefill(s_q=s_q, topk=topk, heads=heads)
    upstream = _importable_flash_mla()
    if upstream is not None:
        timing = _time_upstream(upstream, sets)
        peers.append(Peer(name="flash_mla", us=timing.median_us, source="same_run"))
    return peers


def _importable_flash_mla() -> Any | None:
    """The real flash_mla, if there is one: our own package of that name is no peer."""
    try:
        import flash_mla  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return None if "h20_ops" in (flash_mla.__doc__ or "") else flash_mla


def _time_upstream(upstream: Any, sets: list[PrefillInputs]) -> Timing:
    def call(inputs: PrefillInputs) -> Callable[[], object]:
        return lambda: upstream.flash_mla_sparse_fwd(
            inputs.q, inputs.kv, inputs.indices, inputs.sm_scale, attn_sink=inputs.attn_sink
        )

    return time_calls([call(inputs) for inputs in sets], replays=20)


def _bytes(s_q: int, s_kv: int, topk: int, heads: int) -> float:
    """Bytes of q, out, kv, indices and row statistics, each once."""
    return float(2 * s_q * heads * 512 * 2 + s_kv * 1024 + s_q * topk * 4 + 2 * s_q * heads * 4)


def _fresh_values(inputs: PrefillInputs, seed: int) -> None:
    """Give a copy of a case values of its own, with all sinks finite."""
    rng = torch.Generator("cuda").manual_seed(seed)
    inputs.q.copy_(torch.randn(inputs.q.shape, generator=rng, device="cuda").clamp_(-1, 1))
    inputs.kv.copy_(torch.randn(inputs.kv.shape, generator=rng, device="cuda") * 0.1)
    if inputs.attn_sink is not None:
        inputs.attn_sink.normal_(generator=rng)


def _random(s_q: int, s_kv: int, topk: int, seed: int) -> torch.Tensor:
    """int32 (s_q, 1, topk): distinct keys of the whole cache, in random order; all are valid."""
    rng = torch.Generator("cuda").manual_seed(seed)
    rows = torch.empty((s_q, 1, topk), dtype=torch.int32, device="cuda")
    for start in range(0, s_q, 256):
        part = rows[start : start + 256, 0]
        keys = torch.rand((part.shape[0], s_kv), generator=rng, device="cuda")
        part.copy_(keys.argsort(dim=1)[:, :topk])
    return rows


def _neighbours(s_q: int, s_kv: int, topk: int) -> torch.Tensor:
    """int32 (s_q, 1, topk): ascending keys of a window that moves with the row."""
    first = torch.arange(s_q, device="cuda").unsqueeze(1) * max(1, s_kv - topk) // s_q
    keys = first + torch.arange(topk, device="cuda")
    return keys.to(torch.int32).unsqueeze(1)
