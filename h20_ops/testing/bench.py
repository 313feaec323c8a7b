"""Collect a benchmark's rows and write bench/results/<card>/<op>.json.

A benchmark is a module bench/<op>.py with one function:

    def measure(bench: BenchRun) -> None:
        for case in speed_cases():
            timing = time_calls([...])
            bench.row(shape={"s_q": 4096, ...}, ours=timing, work=mla_work(...), peers=[...])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h20_ops.testing.peers import Peer
from h20_ops.testing.roofline import CARDS, H20, H200, Work, lower_bound_us, terms_us
from h20_ops.testing.timing import Timing

SHAPE_KEYS: dict[str, tuple[str, ...]] = {
    "mla_prefill": ("s_q", "s_kv", "topk", "heads"),
    "mla_decode": ("batch", "topk", "extra_topk", "heads"),
    "logits_prefill": ("rows", "context", "heads"),
    "logits_paged": ("batch", "context", "heads"),
    "logits_candidates": ("rows", "context", "candidates", "heads"),
    "topk": ("rows", "columns", "k"),
    "requant_fp4": ("experts", "rows", "columns"),
    "requant_fp8": ("rows", "columns"),
    "vit": ("images", "rows", "heads", "dim"),
}
OPERATOR_OF = {
    "mla_prefill": "sparse_mla_prefill",
    "mla_decode": "sparse_mla_decode",
    "logits_prefill": "mqa_logits_prefill",
    "logits_paged": "mqa_logits_paged",
    "logits_candidates": "mqa_logits_paged",
    "topk": "topk",
    "requant_fp4": "requant",
    "requant_fp8": "requant",
    "vit": "vit_attention",
}


def benchmarks(root: Path) -> list[str]:
    """Return the benchmarks that have a module under bench/, in order."""
    return sorted(op for op in OPERATOR_OF if (root / "bench" / f"{op}.py").is_file())


Row = dict[str, Any]


@dataclass(kw_only=True)
class BenchRun:
    """One run of one benchmark on one card. `rows` grows as the benchmark measures."""

    op: str
    card: str
    copy_gbps: float
    rows: list[Row] = field(default_factory=list)

    def row(
        self,
        *,
        shape: Mapping[str, int],
        ours: Timing,
        work: Work,
        peers: Sequence[Peer] = (),
        **more: str | int | float | bool,
    ) -> None:
        """Add a row per peer, or one without a peer, and print it.

        Args:
            shape: the op's SHAPE_KEYS.
            ours: what time_calls returned.
            work: flops and bytes of one call, for the rates and the bounds.
            more: further facts about the row, e.g. indices="random", record="528+288".
        """
        keys = SHAPE_KEYS[self.op]
        assert set(keys) <= set(shape), f"{self.op}: shape needs {keys}, got {sorted(shape)}"
        us = ours.median_us
        card = next((c for slug, c in CARDS.items() if self.card.lower().endswith(slug)), H200)
        roof = {
            "mma": work.flops / (card.bf16_tflops * work.mma_speed) / 1e6,
            "memory": work.bytes_moved / self.copy_gbps / 1e3,
        }
        h20 = {name: round(value, 3) for name, value in terms_us(work, H20).items()}
        for peer in peers or (None,):
            self.rows.append(
                {
                    **shape,
                    **more,
                    "ours_us": round(us, 3),
                    "ours_min_us": round(ours.min_us, 3),
                    "peer": peer.name if peer else None,
                    "peer_us": round(peer.us, 3) if peer else None,
                    "peer_source": peer.source if peer else None,
                    "tflops": round(work.flops / us / 1e6, 1),
                    "gbps": round(work.bytes_moved / us / 1e3, 1),
                    "roofline_us": round(max(roof.values()), 3),
                    "h20_lower_bound_us": round(lower_bound_us(work, H20), 3),
                    "h20_lower_bound_terms_us": h20,
                }
            )
        shown = " ".join(f"{key}={value}" for key, value in {**shape, **more}.items())
        against = ", ".join(f"{p.name} {p.us:.1f} us ({p.source})" for p in peers)
        print(f"{self.op}: {shown}: {us:.2f} us {work.flops / us / 1e6:.0f} TFLOP/s; {against}")


def write_results(path: Path, run: BenchRun, facts: Mapping[str, Any]) -> None:
    """Write a run as JSON; facts are clocks, commit, date, torch, cuda and the sources' hash."""
    assert run.rows, f"{run.op}: the benchmark measured nothing"
    record = {
        "op": run.op,
        "card": run.card,
        **facts,
        "copy_gbps": round(run.copy_gbps, 1),
        "h20_lower_bound": "largest of h20_lower_bound_terms_us: MMA at 148 TFLOP/s (296 in FP8), memory at "
        "4.0 TB/s, exponentials and dequantisation on 78 SMs at 1.98 GHz; launch latency, "
        "synchronisation and address arithmetic are not in it",
        "rows": run.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
