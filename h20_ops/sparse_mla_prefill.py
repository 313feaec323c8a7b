"""Sparse MLA prefill on SM90: every query row attends to its own list of kv rows."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from h20_ops.errors import DeviceError
from h20_ops.jit import CudaSource, Kernel, load_kernel

if TYPE_CHECKING:
    import torch

ENTRY = "sparse_mla_prefill_kernel"
THREADS = 384
HEADS_PER_BLOCK = 64
SHARED_BYTES = 219 * 1024
SOURCE = CudaSource(
    "sparse_mla_prefill",
    Path(__file__).parent / "cuda" / "sparse_mla_prefill.cu",
    {"SHARED_BYTES": SHARED_BYTES},
)


class _Params(ctypes.Structure):
    """Params of the source, field for field."""

    _fields_ = [
        ("q", ctypes.c_void_p),
        ("kv", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("topk_length", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("max_logits", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("q_row_stride", ctypes.c_int64),
        ("q_head_stride", ctypes.c_int64),
        ("kv_row_stride", ctypes.c_int64),
        ("indices_row_stride", ctypes.c_int64),
        ("s_kv", ctypes.c_int),
        ("h_q", ctypes.c_int),
        ("head_groups", ctypes.c_int),
        ("topk", ctypes.c_int),
        ("num_works", ctypes.c_int),
        ("sm_scale", ctypes.c_float),
    ]


def load() -> Kernel:
    """Compile and load the kernel on the current device, so that a first call can be captured."""
    return load_kernel(SOURCE, ENTRY, shared_bytes=SHARED_BYTES)


def sparse_mla_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attend each query row to the kv rows its index row lists; no causal rule is applied.

    Position k of an index row counts if 0 <= index < s_kv and k < topk_length of that row. Invalid
    indices may stand anywhere; a repeated index counts as often as it is listed. A kv row that no
    valid position lists is never read.

    Args:
        q: bf16, (s_q, h_q, 512); rows and heads may be strided, each of the 512 runs 16-byte aligned.
        kv: bf16, (s_kv, 1, 512); keys and values at once; rows may be strided like those of q.
        indices: int32, (s_q, 1, topk), row stride free, last dimension contiguous.
        sm_scale: factor of the logits, positive.
        d_v: 512, the width of the values.
        attn_sink: fp32, (h_q,); a logit that only enlarges the denominator.
        topk_length: int32, (s_q,).
    Returns:
        out: bf16, (s_q, h_q, 512), contiguous, own storage.
        max_logits, lse: fp32, (s_q, h_q), natural logarithm, without the sink.
        A row with nothing valid gets out 0, max_logits -inf, lse +inf.
    """
    import torch

    from h20_ops.arguments import check_sparse_mla_prefill

    s_q, h_q, s_kv, topk = check_sparse_mla_prefill(q, kv, indices, d_v, attn_sink, topk_length)
    assert sm_scale > 0, f"sm_scale: a positive number expected, got {sm_scale}"
    _check_rows(q, "q")
    _check_rows(kv, "kv")
    assert topk == 0 or indices.stride(2) == 1, f"indices: strides {indices.stride()}, last not 1"
    for name, tensor in (("attn_sink", attn_sink), ("topk_length", topk_length)):
        assert tensor is None or tensor.is_contiguous(), f"{name}: strides {tensor.stride()}"
    if q.device.type != "cuda":
        raise DeviceError(
            f"tensors on {q.device}",
            "tensors on an SM90 device (H20, H100, H200)",
            "move them there, or call the twin h20_ops.torch_ref.sparse_mla_prefill",
        )
    with torch.cuda.device(q.device):
        out = torch.empty((s_q, h_q, d_v), dtype=torch.bfloat16, device=q.device)
        max_logits = torch.empty((s_q, h_q), dtype=torch.float32, device=q.device)
        lse = torch.empty_like(max_logits)
        head_groups = -(-h_q // HEADS_PER_BLOCK)
        num_works = s_q * head_groups
        assert num_works < 2**31, f"s_q {s_q} with {head_groups} groups of heads: 2^31 at most"
        if num_works == 0:
            return out, max_logits, lse
        params = _Params(
            q=q.data_ptr(),
            kv=kv.data_ptr(),
            indices=indices.data_ptr(),
            sink=None if attn_sink is None else attn_sink.data_ptr(),
            topk_length=None if topk_length is None else topk_length.data_ptr(),
            out=out.data_ptr(),
            max_logits=max_logits.data_ptr(),
            lse=lse.data_ptr(),
            q_row_stride=q.stride(0),
            q_head_stride=q.stride(1),
            kv_row_stride=kv.stride(0),
            indices_row_stride=indices.stride(0),
            s_kv=s_kv,
            h_q=h_q,
            head_groups=head_groups,
            topk=topk,
            num_works=num_works,
            sm_scale=sm_scale,
        )
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
        load().launch(grid=(min(num_works, processors),), block=(THREADS,), args=[params])
    return out, max_logits, lse


def _check_rows(tensor: torch.Tensor, name: str) -> None:
    """Every run of 512 elements must be contiguous and start on a 16-byte boundary."""
    strides, shape = tensor.stride(), tuple(tensor.shape)
    assert strides[2] == 1, f"{name}: strides {strides}, last dimension must be contiguous"
    for size, stride in zip(shape[:2], strides[:2], strict=True):
        assert size <= 1 or stride % 8 == 0, (
            f"{name}: shape {shape}, strides {strides}, want 8 | stride"
        )
    assert tensor.data_ptr() % 16 == 0, (
        f"{name}: address {tensor.data_ptr():#x} is not 16-byte aligned"
    )
