"""Compiled forms of the prefill indexer logits: work space, argument structure and launches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from h20_ops.jit import CudaSource, Kernel, load_kernel

if TYPE_CHECKING:
    import torch

NAME = "mqa_logits_prefill"
PATH = Path(__file__).parent / "mqa_logits_prefill.cu"
WARPGROUP = 128
TILE_KEYS = 64
KEY_TILE_BYTES = TILE_KEYS * 128
Q_TILE_BYTES = 128 * 128
Q_TILES = 2  # a block of rows: 8 tokens of 32 heads, or 4 of 64
TOKENS = 4
DENSE_META_BYTES = 4 * 32 * 4 + 4 * 32
CANDIDATE_META_BYTES = 64 * 4 + 32
CANDIDATE_SHARED_BYTES = 88 * 1024
CANDIDATE_THREADS = 3 * WARPGROUP
CANDIDATE_CTAS_PER_PROCESSOR = 2
EXPAND_THREADS = 256
MAX_HEADS = 64
ROW_BYTES = 1024  # logits rows start at multiples of this


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the dense kernel divides a processor.

    math_warpgroups: each takes 64 keys a step. stages: steps of keys in flight. overlap: 0, one set
    of accumulators; 1, two sets, drained each step; 2, each second step. weights_in_shared: read the
    head weights where they are used instead of keeping them in registers.
    """

    math_warpgroups: int = 2
    stages: int = 6
    overlap: int = 1
    weights_in_shared: int = 0

    @property
    def step_keys(self) -> int:
        return TILE_KEYS * self.math_warpgroups

    @property
    def threads(self) -> int:
        return (self.math_warpgroups + 1) * WARPGROUP

    @property
    def shared_bytes(self) -> int:
        """DenseShared of the source, rounded up."""
        stage = self.step_keys * (128 + 4) + 2 * 8
        fixed = 2 * Q_TILES * (Q_TILE_BYTES + DENSE_META_BYTES) + 2 * 8 + 4 * 8
        return -(-(fixed + self.stages * stage) // 1024) * 1024

    @property
    def source(self) -> CudaSource:
        return CudaSource(
            NAME,
            PATH,
            {
                "MATH_WARPGROUPS": self.math_warpgroups,
                "STAGES": self.stages,
                "OVERLAP": self.overlap,
                "WEIGHTS_IN_SHARED": self.weights_in_shared,
                "DENSE_SHARED_BYTES": self.shared_bytes,
                "CANDIDATE_SHARED_BYTES": CANDIDATE_SHARED_BYTES,
            },
        )


FORM = Form()
EXPAND = f"{NAME}_expand"


def entry(kind: str, heads: int, dtype: str) -> str:
    """Name of a kernel: kind "dense" or "candidates", 32 or 64 heads, "bf16" or "fp32"."""
    return f"{NAME}_{kind}_{heads}_{dtype}"


class Params(ctypes.Structure):
    """Params of the source, field for field."""

    _fields_ = [
        *[
            (name, ctypes.c_void_p)
            for name in (
                *("q", "q_sf", "k", "k_sf", "weights", "ks", "ke", "blocks", "out"),
                *("q_tiles", "q_meta", "k_tiles", "k_scale", "ranges", "ends", "starts", "total"),
            )
        ],
        *[
            (name, ctypes.c_int64)
            for name in (
                *("q_row_stride", "q_head_stride", "q_sf_row_stride", "q_sf_head_stride"),
                *("k_row_stride", "k_sf_stride", "weights_row_stride", "blocks_row_stride"),
                "out_row_stride",
            )
        ],
        *[
            (name, ctypes.c_int32)
            for name in (
                *("rows", "heads", "keys", "columns", "padded_columns", "num_blocks"),
                *("block_shift", "row_blocks", "key_tiles", "main_grid"),
            )
        ],
    ]


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
    form: Form = FORM,
) -> None:
    """Write logits into out (rows, columns), whose rows own the space up to its row stride."""
    import torch

    rows, heads = q.shape[:2]
    halves = 2 if heads > 32 else 1
    dense = candidate_blocks is None
    with torch.cuda.device(q.device):
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
        grid = processors if dense else processors * CANDIDATE_CTAS_PER_PROCESSOR
        key_tiles = -(-k.shape[0] // form.step_keys) * form.math_warpgroups
        row_blocks = -(-rows * halves // (Q_TILES * TOKENS)) if dense else 0
        q_bytes = row_blocks * Q_TILES * Q_TILE_BYTES if dense else rows * halves * 32 * 128
        meta = row_blocks * Q_TILES * DENSE_META_BYTES if dense else rows * CANDIDATE_META_BYTES
        sizes = {
            "q_tiles": q_bytes,
            "q_meta": meta,
            "k_tiles": key_tiles * KEY_TILE_BYTES,
            "k_scale": key_tiles * TILE_KEYS * 4,
            "ranges": row_blocks * 8,
            "ends": row_blocks * 4,
            "starts": grid * 8,
            "total": 4,
        }
        space = torch.empty(sum(map(_aligned, sizes.values())), dtype=torch.uint8, device=q.device)
        addresses, at = {}, space.data_ptr()
        for name, size in sizes.items():
            addresses[name] = at
            at += _aligned(size)
        q, k = _rows_of_sixteen(q), _rows_of_sixteen(k)
        ks, ke = ks.contiguous(), ke.contiguous()
        blocks = None if candidate_blocks is None else _last_contiguous(candidate_blocks)
        params = Params(
            q=q.data_ptr(),
            q_sf=q_sf.data_ptr(),
            k=k.data_ptr(),
            k_sf=k_sf.data_ptr(),
            weights=weights.data_ptr(),
            ks=ks.data_ptr(),
            ke=ke.data_ptr(),
            blocks=None if blocks is None else blocks.data_ptr(),
            out=out.data_ptr(),
            **addresses,
            q_row_stride=q.stride(0),
            q_head_stride=q.stride(1),
            q_sf_row_stride=q_sf.stride(0),
            q_sf_head_stride=q_sf.stride(1),
            k_row_stride=k.stride(0),
            k_sf_stride=k_sf.stride(0),
            weights_row_stride=weights.stride(0),
            blocks_row_stride=0 if blocks is None else blocks.stride(0),
            out_row_stride=out.stride(0),
            rows=rows,
            heads=heads,
            keys=k.shape[0],
            columns=max_kv_len,
            padded_columns=out.shape[1],
            num_blocks=0 if blocks is None else blocks.shape[1],
            block_shift=4 if candidate_block_size == 16 else 3,
            row_blocks=row_blocks,
            key_tiles=key_tiles,
            main_grid=grid,
        )
        token_groups = row_blocks * Q_TILES // halves if dense else -(-rows // TOKENS)
        expand = load_kernel(form.source, EXPAND)
        main = _main_kernel(form, dense, halves, out.dtype == torch.float32)
        expand.launch(
            grid=(int(dense) + key_tiles + token_groups,), block=(EXPAND_THREADS,), args=[params]
        )
        main.launch(
            grid=(grid,),
            block=(form.threads if dense else CANDIDATE_THREADS,),
            args=[params],
            programmatic=True,
        )


def _main_kernel(form: Form, dense: bool, halves: int, fp32: bool) -> Kernel:
    name = entry("dense" if dense else "candidates", 32 * halves, "fp32" if fp32 else "bf16")
    shared = form.shared_bytes if dense else CANDIDATE_SHARED_BYTES
    return load_kernel(form.source, name, shared_bytes=shared)


def _aligned(size: int) -> int:
    return -(-size // 1024) * 1024


def _rows_of_sixteen(packed: torch.Tensor) -> torch.Tensor:
    """The same codes with every vector of 64 bytes starting at a multiple of 16."""
    strides = [
        stride
        for size, stride in zip(packed.shape[:-1], packed.stride()[:-1], strict=True)
        if size > 1
    ]
    if packed.data_ptr() % 16 == 0 and all(stride % 16 == 0 for stride in strides):
        return packed
    import torch

    return packed.clone(memory_format=torch.contiguous_format)


def _last_contiguous(blocks: torch.Tensor) -> torch.Tensor:
    return blocks if blocks.stride(1) == 1 or blocks.shape[1] == 1 else blocks.contiguous()
