"""Indexer logits of prefill rows on the engine's FP4 tensors.

On an SM90 device two launches: queries and keys are expanded to FP8 (exactly, while the exponents of a
vector's four groups span at most 14), then multiplied on FP8 tensor cores with fp32 accumulation. CPU
tensors go to the plain-torch twin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.errors import UnsupportedError

if TYPE_CHECKING:
    import torch


def mqa_logits_prefill(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    k: torch.Tensor,
    k_sf: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    *,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None = None,
    candidate_block_size: int = 0,
    out_dtype: torch.dtype | None = None,
    fill: bool = False,
) -> torch.Tensor:
    """Return sum over heads of weight * relu(q . k) for each row and the keys of its range.

    Args:
        q, q_sf: int8 (rows, heads, 64) e2m1, the even channel in the low nibble, and int32 (rows, heads) of
            four ue8m0 exponents, the lowest byte for channels 0..31.
        k, k_sf: int8 (keys, 64), int32 (keys,), likewise.
        weights: bf16 (rows, heads), row stride a multiple of 16 bytes.
        ks, ke: int32 (rows,); row i sees keys ks[i] .. ke[i] - 1.
        max_kv_len: columns; column c of a row is key ks + c.
        candidate_blocks: int32 (rows, blocks): ascending block ids counted from ks, -1 behind the last. With
            them the columns are those of the blocks, one after the other, the same values bit for bit.
            The first min(blocks, ceil((ke - ks) / block)) slots count.
        candidate_block_size: 8 or 16.
        out_dtype: bf16 (the default, what SM100 selects on) or fp32.
        fill: also define the columns past the last tile of a row, as -inf.
    Returns:
        (rows, columns), row stride a multiple of 1024 bytes. Columns past a row's end are -inf up to
        the end of its last tile and unspecified beyond, unless fill.
    """
    if q.is_cuda:
        return _on_gpu(
            q,
            q_sf,
            k,
            k_sf,
            weights,
            ks,
            ke,
            max_kv_len=max_kv_len,
            candidate_blocks=candidate_blocks,
            candidate_block_size=candidate_block_size,
            out_dtype=out_dtype,
            fill=fill,
        )
    from h20_ops.torch_ref.mqa_logits_prefill import mqa_logits_prefill as twin

    return twin(
        q,
        q_sf,
        k,
        k_sf,
        weights,
        ks,
        ke,
        max_kv_len=max_kv_len,
        candidate_blocks=candidate_blocks,
        candidate_block_size=candidate_block_size,
        out_dtype=out_dtype,
        fill=fill,
    )


def _on_gpu(
    q: torch.Tensor,
    q_sf: torch.Tensor,
    k: torch.Tensor,
    k_sf: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    *,
    max_kv_len: int,
    candidate_blocks: torch.Tensor | None,
    candidate_block_size: int,
    out_dtype: torch.dtype | None,
    fill: bool,
) -> torch.Tensor:
    import torch

    from h20_ops.arguments_index import check_mqa_logits_prefill
    from h20_ops.cuda.mqa_logits_prefill_kernel import MAX_HEADS, ROW_BYTES, launch

    rows, heads, keys = check_mqa_logits_prefill(
        q, q_sf, k, k_sf, weights, ks, ke, max_kv_len, candidate_blocks, candidate_block_size
    )
    dtype = out_dtype or torch.bfloat16
    if heads > MAX_HEADS or dtype not in (torch.bfloat16, torch.float32):
        raise UnsupportedError(
            f"{heads} heads, logits in {dtype}",
            f"at most {MAX_HEADS} heads, logits in torch.bfloat16 or torch.float32",
            "call the twin h20_ops.torch_ref.mqa_logits_prefill for others",
        )
    columns = max_kv_len
    if candidate_blocks is not None:
        columns = candidate_blocks.shape[1] * candidate_block_size
    per_row = ROW_BYTES // dtype.itemsize
    shape = (rows, -(-columns // per_row) * per_row)
    nothing = rows == 0 or keys == 0
    if fill or nothing:
        out = torch.full(shape, -torch.inf, dtype=dtype, device=q.device)
    else:
        out = torch.empty(shape, dtype=dtype, device=q.device)
    if not nothing:
        launch(
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
        )
    return out[:, :columns]
