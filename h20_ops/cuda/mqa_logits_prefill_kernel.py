"""Compiled forms of the prefill indexer logits, and their launches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from h20_ops.cuda.mqa_logits_prefill_call import (
    DENSE_META_BYTES,
    EXPAND_THREADS,
    Q_TILE_BYTES,
    Q_TILES,
    STEP_KEYS,
    STEP_PIECES,
    TILE_KEYS,
    Kind,
    prepare,
)
from h20_ops.cuda.mqa_logits_prefill_map import row_map
from h20_ops.jit import CudaSource, Kernel, load_kernel

if TYPE_CHECKING:
    import torch

NAME = "mqa_logits_prefill"
PATH = Path(__file__).parent / "mqa_logits_prefill.cu"
MAX_HEADS = 64
ROW_BYTES = 1024  # logits rows start at multiples of this
STAGES = 5
_STAGE_BYTES = STEP_KEYS * (128 + 4) + STEP_PIECES * 16 + 2 * 8
_FIXED_BYTES = 2 * Q_TILES * (Q_TILE_BYTES + DENSE_META_BYTES) + 2 * 8 + 4 * 8
DENSE_SHARED_BYTES = -(-(_FIXED_BYTES + STAGES * _STAGE_BYTES) // 1024) * 1024
CANDIDATE_SHARED_BYTES = 88 * 1024
SOURCE = CudaSource(
    NAME,
    PATH,
    {
        "DENSE_SHARED_BYTES": DENSE_SHARED_BYTES,
        "CANDIDATE_SHARED_BYTES": CANDIDATE_SHARED_BYTES,
    },
)
EXPAND = f"{NAME}_expand"


def entry(kind: str, heads: int, dtype: str) -> str:
    """Name of a kernel: kind of Kind in lower case, 32 or 64 heads, "bf16" or "fp32"."""
    return f"{NAME}_{kind}_{heads}_{dtype}"


def launch(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    k: torch.Tensor,
    k_sf: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    out: torch.Tensor,
    *,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None,
    candidate_block_size: int,
    kind: Kind | None = None,
) -> None:
    """Write logits into out (rows, columns), whose rows own the space up to its row stride."""
    import torch

    with torch.cuda.device(q.device):
        call = prepare(
            q,
            q_sf,
            k,
            k_sf,
            weights,
            ks,
            ke,
            out,
            max_kv_len=max_kv_len,
            candidate_blocks=candidate_blocks,
            candidate_block_size=candidate_block_size,
            kind=kind,
            processors=torch.cuda.get_device_properties(q.device).multi_processor_count,
        )
        params = call.params
        expand = load_kernel(SOURCE, EXPAND)
        main = load_main(call.kind, params.heads, call.fp32)
        expand.launch(grid=(call.expand_grid,), block=(EXPAND_THREADS,), args=[params])
        arguments: list[Any] = [params]
        if call.kind == Kind.UNITED:
            arguments.append(row_map(params.k_tiles, params.key_tiles * TILE_KEYS))
        main.launch(
            grid=(call.main_grid,), block=(call.main_threads,), args=arguments, programmatic=True
        )


def load_main(kind: Kind, heads: int, fp32: bool) -> Kernel:
    """Compile and load the kernel that multiplies."""
    padded = 64 if heads > 32 else 32
    shared = CANDIDATE_SHARED_BYTES if kind == Kind.GATHERED else DENSE_SHARED_BYTES
    name = entry(kind.name.lower(), padded, "fp32" if fp32 else "bf16")
    return load_kernel(SOURCE, name, shared_bytes=shared)
