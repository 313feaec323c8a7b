"""Plain-torch twins of the operators: same names, same signatures, any device, slow and clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h20_ops.lazy import make_lazy

if TYPE_CHECKING:
    from h20_ops.torch_ref.sparse_mla_decode import sparse_mla_decode as sparse_mla_decode
    from h20_ops.torch_ref.sparse_mla_prefill import sparse_mla_prefill as sparse_mla_prefill

__all__ = ["sparse_mla_decode", "sparse_mla_prefill"]

make_lazy(
    __name__,
    {
        "sparse_mla_prefill": "h20_ops.torch_ref.sparse_mla_prefill",
        "sparse_mla_decode": "h20_ops.torch_ref.sparse_mla_decode",
    },
)
