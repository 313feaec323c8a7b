"""Sparse MLA prefill: time at the shapes with a number to reach, and beside what can be loaded.

Peers run in the same process, alternating with ours so that a warm card slows both: an importable
`flash_mla`, and vLLM's build of FlashMLA if H20_OPS_VLLM_FLASHMLA names its `_flashmla_C` library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from h20_ops import sparse_mla_prefill
from h20_ops.testing.bench import BenchRun
from h20_ops.testing.cases_prefill import PrefillInputs, make_prefill, speed_cases
from h20_ops.testing.compare import normalised_difference
from h20_ops.testing.peers import Peer, recorded_prefill
from h20_ops.testing.roofline import mla_work
from h20_ops.testing.timing import Timing, rotation_count, time_calls

ROUNDS = 3
Operator = Callable[[PrefillInputs], tuple[torch.Tensor, ...]]


def measure(bench: BenchRun) -> None:
    """Measure every speed case with random indices, and one with overlapping neighbours."""
    peers = _loadable_peers()
    for case in speed_cases():
        # q alone is several L2 sizes, so few sets are enough; kv is meant to stay in L2.
        bytes_moved = _bytes(case.s_q, case.s_kv, case.topk, case.heads)
        count = min(3, rotation_count(int(bytes_moved)))
        sets = [make_prefill(case, "cuda") for _ in range(count)]
        for number, inputs in enumerate(sets):
            _fresh_values(inputs, number)
        both = (case.topk, case.s_kv, case.heads) == (640, 8192, 64)
        for kind in ("random", "neighbours") if both else ("random",):
            for number, inputs in enumerate(sets):
                make = _random if kind == "random" else _neighbours
                inputs.indices.copy_(make(case.s_q, case.s_kv, case.topk, number))
            timings = _alternate([_ours, *peers.values()], sets)
            found = [
                Peer(name=name, us=timing.median_us, source="same_run")
                for name, timing in zip(peers, timings[1:], strict=True)
            ]
            bench.row(
                shape={"s_q": case.s_q, "s_kv": case.s_kv, "topk": case.topk, "heads": case.heads},
                ours=timings[0],
                work=mla_work(
                    rows=case.s_q, heads=case.heads, topk=case.topk, bytes_moved=bytes_moved
                ),
                peers=found
                + recorded_prefill(s_q=case.s_q, s_kv=case.s_kv, topk=case.topk, heads=case.heads),
                indices=kind,
            )
        del sets
        torch.cuda.empty_cache()


def _alternate(operators: Sequence[Operator], sets: Sequence[PrefillInputs]) -> list[Timing]:
    """Time all operators in turn, ROUNDS times, and return each one's middle round."""
    results = [operator(sets[0])[0] for operator in operators]
    for other in results[1:]:
        difference = normalised_difference(other, results[0])
        assert difference < 1e-5, f"a peer's output differs: normalised difference {difference}"
    rounds: list[list[Timing]] = [[] for _ in operators]
    for _ in range(ROUNDS):
        for operator, timings in zip(operators, rounds, strict=True):
            timings.append(time_calls([_bind(operator, x) for x in sets], replays=20))
    return [sorted(timings, key=lambda t: t.median_us)[ROUNDS // 2] for timings in rounds]


def _bind(operator: Operator, inputs: PrefillInputs) -> Callable[[], object]:
    return lambda: operator(inputs)


def _ours(x: PrefillInputs) -> tuple[torch.Tensor, ...]:
    return sparse_mla_prefill(x.q, x.kv, x.indices, sm_scale=x.sm_scale, attn_sink=x.attn_sink)


def _loadable_peers() -> dict[str, Operator]:
    peers: dict[str, Operator] = {}
    flash_mla = _importable_flash_mla()
    if flash_mla is not None:
        peers["flash_mla"] = lambda x: flash_mla.flash_mla_sparse_fwd(
            x.q, x.kv, x.indices, x.sm_scale, attn_sink=x.attn_sink
        )
    library = os.environ.get("H20_OPS_VLLM_FLASHMLA")
    if library:
        torch.ops.load_library(library)
        peers["FlashMLA SM90 (vLLM)"] = lambda x: torch.ops._flashmla_C.sparse_prefill_fwd(
            x.q, x.kv, x.indices, x.sm_scale, 512, x.attn_sink, None, None
        )
    return peers


def _importable_flash_mla() -> Any | None:
    """The real flash_mla, if there is one: our own package of that name is no peer."""
    try:
        import flash_mla  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return None if getattr(flash_mla, "IS_H20_DROP_IN", False) else flash_mla


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


def _neighbours(s_q: int, s_kv: int, topk: int, seed: int) -> torch.Tensor:
    """int32 (s_q, 1, topk): ascending keys of a window that moves with the row, set by set alike."""
    first = torch.arange(s_q, device="cuda").unsqueeze(1) * max(1, s_kv - topk) // s_q
    keys = first + torch.arange(topk, device="cuda")
    return keys.to(torch.int32).unsqueeze(1)
