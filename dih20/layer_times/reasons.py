"""Why a component is further than three times from what the card allows."""

from __future__ import annotations

import math
from typing import Any

FAR = 3.0

_LATENCY = (
    "a few microseconds of steps that wait for each other; 64 rows leave most of the card idle"
)
_FP4 = (
    "codes of e2m1 are made by CUDA's header, which has no instruction for them on compute capability 9: "
    "arithmetic, not memory, takes the time"
)
_CUBLAS = (
    "few columns of weights: too few blocks for 132 multiprocessors, so cuBLASLt cuts the sum into pieces "
    "and adds them in a second kernel"
)
REASONS: dict[str, str] = {
    "dispatch": "plain torch, about fifteen small kernels in turn: it sorts rows by expert and lays them out "
    "for the worst case, each expert padded to 128, so that the device need not be read (6,528 rows for the "
    "384 of 64 sequences)",
    "combine": "plain torch: each of the six experts is gathered and added by kernels of their own, so the fp32 "
    "sum passes through memory six times; it must stay fp32 until the shared expert is added",
    "rows": "plain torch: rows are gathered, converted and multiplied by their scales in kernels of their own",
    "topk": "rows of at most 32,768 entries: the passes over one row wait for each other, and their number, "
    "not the bytes, takes the time",
    "candidate_block_max": "upstream's: a kernel that makes tasks, then one that reads tiles of 2 rows by "
    "16,384 columns whole, however short the rows are",
    "moe_topk_gate": "upstream's: six choices in turn, each after the one before",
    "sinkhorn_normalize": "upstream's: twenty normalisations of a 4x4 matrix, each after the one before",
    "mhc_pre_norm_fn": "two kernels: a product with 24 columns, cut in sixteen, and the sum of its parts",
    "mhc_post": _LATENCY,
    "norm": _LATENCY,
    "apply_rotary": _LATENCY,
    "convert_kv_index": _LATENCY,
    "restore_candidate_indices_inplace": _LATENCY,
    "engram_gate_fwd": _LATENCY,
    "compress_and_update_state_decode": _LATENCY,
    "swiglu_forward_and_per_token_cast": "walks the 6,528 rows of the worst case, of which 384 hold a token",
    "bf16_gemm_nt": _CUBLAS,
    "fp8_gemm_nt": "1,280 to 1,792 rows of weights are 10 to 14 blocks of 128 for 132 multiprocessors",
    "flash_mla_with_kvcache": "one query a sequence: records are gathered one by one and converted before "
    "they are multiplied, and 64 sequences are half a block for each multiprocessor; compare "
    "bench/results/h200/mla_decode.json",
    "load_paged_kv_cache": "at most 32 pages and one window: fewer blocks than multiprocessors",
    "fused_norm_rope_hadamard_cast_store_kvcache": _FP4,
    "mqa_logits_prefill": "a fresh prompt: a row sees 2,048 keys on average, so tiles across the diagonal, "
    "computed whole, and the expansion of keys to FP8 weigh more than on long contexts; compare "
    "bench/results/h200/logits_prefill.json",
}
_FEW_EXPERTS = (
    "faster than the roofline: the rows of this layer chose fewer of the 48 experts than even routing would, "
    "which the roofline of this record assumes"
)


def reason(operator: str) -> str:
    """Give the line for an operator; '' when none was written."""
    return REASONS.get(operator, "")


def annotate(record: dict[str, Any]) -> None:
    """Write the lines into a record's rows anew."""
    for found in record["passes"].values():
        for layer in found["layers"]:
            for row in layer["components"]:
                row.pop("why", None)
                far = row.get("times_bound", 0.0)
                if far > FAR:
                    row["why"] = reason(row["component"].rsplit(" ", 1)[-1])
                elif 0 < far < 0.9 and "grouped" in row["component"]:
                    row["why"] = _FEW_EXPERTS


def open_questions(record: dict[str, Any]) -> list[str]:
    """Give a line for each layer and component that has no time, or is far and has no reason."""
    found: list[str] = []
    if not record.get("passes"):
        found.append("no pass was timed")
    for name, each in record.get("passes", {}).items():
        if not each["layers"]:
            found.append(f"{name}: no layer was timed")
        for layer in each["layers"]:
            where = f"{name}: layer {layer['layer']}"
            rows = layer["components"]
            if not _is_time(layer.get("us")):
                found.append(f"{where} has no time: {layer.get('us')}")
            for row in rows:
                if not _is_time(row.get("us")):
                    found.append(f"{where}: {row['component']} has no time: {row.get('us')}")
                elif row.get("times_bound", 0.0) > FAR and not row.get("why"):
                    found.append(
                        f"{where}: no reason is written for {row['component']} (dih20/layer_times/reasons.py)"
                    )
    return found


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
