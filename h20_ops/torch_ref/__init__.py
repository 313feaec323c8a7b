"""Plain-torch twins of the operators: same names, same signatures, any device, slow and clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.lazy import make_lazy

if TYPE_CHECKING:
    from h20_ops.torch_ref.load_kv import load_kv as load_kv
    from h20_ops.torch_ref.mqa_logits_paged import mqa_logits_paged as mqa_logits_paged
    from h20_ops.torch_ref.mqa_logits_prefill import mqa_logits_prefill as mqa_logits_prefill
    from h20_ops.torch_ref.sparse_mla_decode import sparse_mla_decode as sparse_mla_decode
    from h20_ops.torch_ref.sparse_mla_prefill import sparse_mla_prefill as sparse_mla_prefill
    from h20_ops.torch_ref.store_kv import store_kv as store_kv
    from h20_ops.torch_ref.topk import topk as topk
    from h20_ops.torch_ref.vit_attention import vit_attention as vit_attention

__all__ = [
    "load_kv",
    "mqa_logits_paged",
    "mqa_logits_prefill",
    "sparse_mla_decode",
    "sparse_mla_prefill",
    "store_kv",
    "topk",
    "vit_attention",
]

make_lazy(__name__, {name: f"h20_ops.torch_ref.{name}" for name in __all__})
