"""Plain-torch twins of the operators: same names, same signatures, any device, slow and clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.lazy import make_lazy

if TYPE_CHECKING:
    from h20_ops.torch_ref.load_kv import load_kv as load_kv
    from h20_ops.torch_ref.sparse_mla_decode import sparse_mla_decode as sparse_mla_decode
    from h20_ops.torch_ref.sparse_mla_prefill import sparse_mla_prefill as sparse_mla_prefill
    from h20_ops.torch_ref.store_kv import store_kv as store_kv

__all__ = ["load_kv", "sparse_mla_decode", "sparse_mla_prefill", "store_kv"]

make_lazy(__name__, {name: f"h20_ops.torch_ref.{name}" for name in __all__})
