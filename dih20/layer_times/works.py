"""What each recorded call has to do at least: flops of its products, bytes it must read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dih20.layer_times.recording import Call, tensors_of
from h20_ops.testing.roofline import Work

_HEADS_DIM, _INDEX_DIM = 512, 128
_WINDOW, _WINDOW_RECORD, _CHOSEN_RECORD, _INDEX_RECORD = 128, 528, 288, 68
_FP8 = 2.0
_ALIGNMENT = 128


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The pass. keys: how many tokens a row sees on average; longest: at most."""

    rows: int
    keys: float
    longest: int
    experts_per_token: int
    index_topk: int
    ratios: tuple[int, ...]


def work_of(call: Call, batch: Batch) -> Work:
    """Give a call's least work. Memory that calls share in L2 is counted for each, once."""
    ratio = max(1, batch.ratios[call.layer])
    name = call.operator
    if name in ("fp8_gemm_nt", "bf16_gemm_nt"):
        return _product(call, 1.0 if name.startswith("bf16") else _FP8)
    if name == "m_grouped_fp8_gemm_nt_contiguous":
        return _experts(call, batch)
    if name == "fp8_einsum_bhr_hdr_bhd":
        (x, _), (weight, _), out = call.arguments[:3]
        return Work(
            flops=2.0 * x.numel() * out.shape[-1],
            bytes_moved=_bytes(x, weight, out),
            mma_speed=_FP8,
        )
    if name in ("mqa_logits_prefill", "mqa_logits_paged"):
        return _logits(call, batch, ratio)
    if name == "topk":
        read = min(batch.keys / ratio, call.arguments[0].shape[1])
        item = call.arguments[0].element_size()
        return _moved(call.arguments[0].shape[0] * (read * item + call.arguments[1] * 4.0))
    if name in ("flash_mla_sparse_fwd", "flash_mla_with_kvcache"):
        return _attention(call, batch, ratio)
    if name == "apply_rotary":
        return _moved(2 * _bytes(call.arguments[0]))
    if name == "swiglu_forward_and_per_token_cast":
        wide = call.arguments[0]
        rows = min(wide.shape[0], batch.rows * batch.experts_per_token)  # the others hold no token
        return _moved(rows * wide.shape[1] * 2.5)
    if name == "mhc_pre_norm_fn":
        streams, fn = call.arguments[:2]
        flops = 2.0 * streams.numel() / fn.shape[1] * fn.numel()
        return Work(flops=flops, bytes_moved=_bytes(streams, fn, call.result), mma_speed=0.5)
    return _moved(_seen(call, batch, ratio))


def _moved(amount: float) -> Work:
    return Work(flops=0.0, bytes_moved=amount)


def _bytes(*values: object) -> float:
    """Bytes of tensors, each view's own elements."""
    return float(sum(each.numel() * each.element_size() for each in tensors_of(values)))


def _product(call: Call, speed: float) -> Work:
    x, weight = (each[0] if isinstance(each, tuple) else each for each in call.arguments[:2])
    flops = 2.0 * x.shape[0] * weight.shape[0] * weight.shape[1]
    return Work(flops=flops, bytes_moved=_bytes(call.arguments[:3]), mma_speed=speed)


def _experts(call: Call, batch: Batch) -> Work:
    """Rows that hold a token, and the weights of experts that get one, as the call's own groups say."""
    (x, _), (weight, scale), out, ends = call.arguments[:4]
    counts = _group_sizes(ends.tolist())
    rows = sum(counts)
    busy = sum(count > 0 for count in counts) / weight.shape[0]
    moved = busy * _bytes(weight, scale) + rows * (x.shape[1] + 2.0 * out.shape[1])
    flops = 2.0 * rows * weight.shape[1] * weight.shape[2]
    return Work(flops=flops, bytes_moved=moved, mma_speed=_FP8)


def _group_sizes(ends: list[int]) -> list[int]:
    """Give the rows of each group; a group starts at the next multiple of 128 after the one before."""
    starts = [0, *(-(-end // _ALIGNMENT) * _ALIGNMENT for end in ends[:-1])]
    return [end - start for start, end in zip(starts, ends, strict=True)]


def _logits(call: Call, batch: Batch, ratio: int) -> Work:
    """FP8 rate for the products of two FP4 numbers; keys once for a prompt, once a row when paged."""
    q = call.arguments[0]
    blocks, size = call.keywords["candidate_blocks"], call.keywords["candidate_block_size"]
    keys = batch.keys / ratio if blocks is None else min(batch.keys / ratio, blocks.shape[1] * size)
    pairs = batch.rows * keys
    paged = call.operator == "mqa_logits_paged"
    read = (pairs if paged else batch.longest / ratio) * _INDEX_RECORD
    return Work(
        flops=2.0 * pairs * q.shape[1] * _INDEX_DIM,
        bytes_moved=read + 2.0 * pairs + _bytes(q, call.arguments[1]),
        mma_speed=_FP8,
    )


def _attention(call: Call, batch: Batch, ratio: int) -> Work:
    is_paged = call.operator == "flash_mla_with_kvcache"
    q = call.keywords["q"] if is_paged else call.arguments[0]
    heads = q.shape[-2]
    chosen = min(batch.keys / ratio, batch.index_topk) if batch.ratios[call.layer] else 0.0
    window = min(batch.keys, _WINDOW)
    pairs = batch.rows * heads * (window + chosen)
    if is_paged:
        read = batch.rows * (window * _WINDOW_RECORD + chosen * _CHOSEN_RECORD)
    else:
        read = _bytes(call.arguments[1])
    return Work(flops=pairs * 4 * _HEADS_DIM, bytes_moved=read + 2 * _bytes(q), exps=pairs)


def _seen(call: Call, batch: Batch, ratio: int) -> float:
    """Arguments and results; of a paged cache only the records of this pass."""
    held = [*tensors_of(call.arguments), *tensors_of(call.keywords)]
    total = _bytes(*(each for each in held if not _is_cache(each)))
    caches = [each for each in held if _is_cache(each)]
    entries = batch.longest / ratio if call.operator == "load_paged_kv_cache" else batch.rows
    total += sum(float(entries * each.shape[-1]) for each in caches)
    if call.operator in ("dispatch", "combine"):
        return _routed(call, batch)
    if call.operator == "candidate_block_max":
        logits = call.arguments[0]
        return float(logits.shape[0] * min(logits.shape[1], batch.keys / ratio) * 2)
    return total + (0.0 if call.result is None else _bytes(_of(call.result)))


def _of(result: object) -> object:
    return result if isinstance(result, torch.Tensor | tuple | list) else ()


def _routed(call: Call, batch: Batch) -> float:
    """Rows go to each chosen expert, as bytes with scales; they come back as bf16 and are added up."""
    x = call.keywords["x"]
    width = int((x[0] if isinstance(x, tuple) else x).shape[1])
    copies = float(batch.rows * batch.experts_per_token)
    if call.operator == "dispatch":
        return float((batch.rows + copies) * width * (1 + 4 / 128))
    return float((copies + 2 * batch.rows) * width * 2)


def _is_cache(value: torch.Tensor) -> bool:
    return bool(value.dtype == torch.uint8 and value.dim() == 4)
