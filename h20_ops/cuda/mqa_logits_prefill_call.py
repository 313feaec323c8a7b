"""A call of the prefill logits divided into blocks: sizes of the source, work space, arguments."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WARPGROUP = 128
TILE_KEYS = 64
KEY_TILE_BYTES = TILE_KEYS * 128
Q_TILE_BYTES = 128 * 128
Q_TILES = 2  # a block of rows: 8 tokens of 32 heads, or 4 of 64
TOKENS = 4
DENSE_META_BYTES = 4 * 32 * 4 + 4 * 32
CANDIDATE_META_BYTES = 64 * 4 + 32
CANDIDATE_THREADS = 3 * WARPGROUP
CANDIDATE_CTAS_PER_PROCESSOR = 2
EXPAND_THREADS = 256
MATH_WARPGROUPS = 3
STEP_KEYS = TILE_KEYS * MATH_WARPGROUPS  # a row is written to a multiple of these, from key 0 on
THREADS = (MATH_WARPGROUPS + 1) * WARPGROUP
PIECE_KEYS = 8  # of a union
STEP_PIECES = STEP_KEYS // PIECE_KEYS
UNITS_PER_PROCESSOR = 8  # of work, at least, when rows share their keys
UNITED_FROM_ROWS = 65
MAX_UNITED_PIECES = 8191  # of a row: a place has 13 bits, and all ones mean none


class Params(ctypes.Structure):
    """Params of the source, field for field."""

    _fields_ = [
        *[
            (name, ctypes.c_void_p)
            for name in (
                *("q", "q_sf", "k", "k_sf", "weights", "ks", "ke", "blocks", "out"),
                *("q_tiles", "q_meta", "k_tiles", "k_scale", "ranges", "ends", "starts", "total"),
                *("union_keys", "union_slots", "union_counts"),
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
                *("block_shift", "row_blocks", "key_tiles", "main_grid", "kind"),
                *("union_capacity", "union_segments", "out_is_fp32"),
            )
        ],
    ]


class Kind(IntEnum):
    """How keys reach the products; Kind of the source.

    DENSE: every key of the rows' ranges. GATHERED: by candidates, each row its own. UNITED: by
    candidates, a block of rows the union of what its rows list, in which neighbours differ little.
    """

    DENSE = 0
    GATHERED = 1
    UNITED = 2


@dataclass(frozen=True, kw_only=True)
class Call:
    """Both launches of a call: their arguments, and the tensors those point into."""

    params: Params
    kind: Kind
    expand_grid: int
    main_grid: int
    main_threads: int
    kept: tuple[torch.Tensor, ...]

    @property
    def fp32(self) -> bool:
        return bool(self.params.out_is_fp32)


def prepare(
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
    processors: int,
) -> Call:
    """Divide work and work space; runs nothing, and reads no tensor."""
    import torch

    rows, heads = q.shape[:2]
    halves = 2 if heads > 32 else 1
    kind = kind_of(rows, candidate_blocks, candidate_block_size) if kind is None else kind
    gathered = kind == Kind.GATHERED
    grid = processors * (CANDIDATE_CTAS_PER_PROCESSOR if gathered else 1)
    key_tiles = -(-k.shape[0] // STEP_KEYS) * MATH_WARPGROUPS
    row_blocks = 0 if gathered else -(-rows * halves // (Q_TILES * TOKENS))
    blocks = None if candidate_blocks is None else _last_contiguous(candidate_blocks)
    num_blocks = 0 if blocks is None else blocks.shape[1]
    capacity = num_blocks * (candidate_block_size // PIECE_KEYS) * Q_TILES * TOKENS // halves
    capacity = -(-capacity // STEP_PIECES) * STEP_PIECES if kind == Kind.UNITED else 0
    tiles = row_blocks * Q_TILES
    sizes = {
        "q_tiles": rows * halves * 32 * 128 if gathered else tiles * Q_TILE_BYTES,
        "q_meta": rows * CANDIDATE_META_BYTES if gathered else tiles * DENSE_META_BYTES,
        "k_tiles": key_tiles * KEY_TILE_BYTES,
        "k_scale": key_tiles * TILE_KEYS * 4,
        "ranges": row_blocks * 8,
        "ends": row_blocks * 4,
        "starts": grid * 8,
        "total": 4,
        "union_keys": row_blocks * capacity * 4,
        "union_slots": row_blocks * capacity * 16,
        "union_counts": row_blocks * 4,
    }
    space = torch.empty(sum(map(_aligned, sizes.values())), dtype=torch.uint8, device=q.device)
    addresses, at = {}, space.data_ptr()
    for name, size in sizes.items():
        addresses[name] = at
        at += _aligned(size)
    q, k = _rows_of_sixteen(q), _rows_of_sixteen(k)
    ks, ke = ks.contiguous(), ke.contiguous()
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
        num_blocks=num_blocks,
        block_shift=4 if candidate_block_size == 16 else 3,
        row_blocks=row_blocks,
        key_tiles=key_tiles,
        main_grid=grid,
        kind=kind,
        union_capacity=capacity,
        union_segments=-(-UNITS_PER_PROCESSOR * processors // max(1, row_blocks)),
        out_is_fp32=out.dtype == torch.float32,
    )
    planners = {Kind.DENSE: 1, Kind.GATHERED: 0, Kind.UNITED: row_blocks}[kind]
    token_groups = -(-rows // TOKENS) if gathered else tiles // halves
    kept = (q, k, ks, ke, space) if blocks is None else (q, k, ks, ke, space, blocks)
    return Call(
        params=params,
        kind=kind,
        expand_grid=planners + key_tiles + token_groups,
        main_grid=grid,
        main_threads=CANDIDATE_THREADS if gathered else THREADS,
        kept=kept,
    )


def kind_of(rows: int, candidate_blocks: torch.Tensor | None, block: int) -> Kind:
    """What serves a call best."""
    if candidate_blocks is None:
        return Kind.DENSE
    pieces = candidate_blocks.shape[1] * (block // PIECE_KEYS)
    fits = pieces <= MAX_UNITED_PIECES
    return Kind.UNITED if rows >= UNITED_FROM_ROWS and fits else Kind.GATHERED


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
