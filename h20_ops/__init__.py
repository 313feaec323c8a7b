"""Operators and number formats of DeepSeek-V4.1-Flash for SM90 (H20, H200, H100).

    out, max_logits, lse = h20_ops.sparse_mla_prefill(q, kv, indices, sm_scale=scale)
    out, lse = h20_ops.sparse_mla_decode(q, cache, indices, sm_scale=scale, layout=V41_FP8)

Importing this package touches neither the GPU nor tilelang: both are needed by the first kernel
that runs. Plain-torch twins of the operators, with the same signatures, are in `h20_ops.torch_ref`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.lazy import make_lazy

if TYPE_CHECKING:
    from h20_ops.load_kv import load_kv as load_kv
    from h20_ops.mqa_logits_paged import mqa_logits_paged as mqa_logits_paged
    from h20_ops.mqa_logits_prefill import mqa_logits_prefill as mqa_logits_prefill
    from h20_ops.sparse_mla_decode import sparse_mla_decode as sparse_mla_decode
    from h20_ops.sparse_mla_prefill import sparse_mla_prefill as sparse_mla_prefill
    from h20_ops.store_kv import store_kv as store_kv
    from h20_ops.topk import topk as topk
    from h20_ops.vit_attention import vit_attention as vit_attention

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "load_kv",
    "mqa_logits_paged",
    "mqa_logits_prefill",
    "sparse_mla_decode",
    "sparse_mla_prefill",
    "store_kv",
    "topk",
    "vit_attention",
]

make_lazy(__name__, {name: f"h20_ops.{name}" for name in __all__ if name != "__version__"})
