"""Call FlashMLA's operators in other projects' libraries, so that they run beside ours.

vLLM and SGLang ship FlashMLA inside shared libraries that torch can load by path, without the rest
of those packages. H20_OPS_PEER_LIBRARIES lists such files, separated by colons. Arguments are
passed by the names in the operator's own schema, since the builds differ in trailing arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from h20_ops.errors import DependencyError, UnsupportedError
from h20_ops.kv_cache.layouts import V4_FP8
from h20_ops.kv_cache.records import read_kv, write_kv
from h20_ops.testing.cases_decode import DecodeInputs, empty_cache
from h20_ops.testing.cases_prefill import PrefillInputs

VARIABLE = "H20_OPS_PEER_LIBRARIES"
NAMESPACES = ("_flashmla_C", "sgl_kernel")
PREFILL, DECODE = "sparse_prefill_fwd", "sparse_decode_fwd"
_V4_PAGE_MULTIPLE = 576  # FlashMLA's rule for the stride between pages of 584-byte records


@dataclass(frozen=True, kw_only=True)
class OpLibrary:
    """A loaded library's operators; `name` is what benchmark rows call it."""

    name: str
    namespace: str

    def has(self, operator: str) -> bool:
        return hasattr(getattr(torch.ops, self.namespace), operator)

    def bind(self, operator: str, **values: Any) -> Callable[[], Any]:
        """Return a call of an operator with values for the arguments its schema names."""
        overload = getattr(getattr(torch.ops, self.namespace), operator).default
        arguments = overload._schema.arguments
        optional = {a.name for a in arguments if "Optional" in str(a.type) or a.has_default_value()}
        unknown = [a.name for a in arguments if a.name not in values and a.name not in optional]
        if unknown:
            raise UnsupportedError(
                f"{self.name}: {operator} wants {', '.join(unknown)}",
                f"arguments among {', '.join(sorted(values))}",
                "this build is of another interface; leave it out of " + VARIABLE,
            )
        passed = {a.name: values.get(a.name) for a in arguments if a.name in values}
        passed |= {
            a.name: None for a in arguments if a.name not in values and not a.has_default_value()
        }
        return lambda: overload(**passed)


def load_op_libraries() -> list[OpLibrary]:
    """Load the libraries that the environment names; one that does not load is an error."""
    libraries = []
    for item in filter(None, os.environ.get(VARIABLE, "").split(":")):
        before = {space for space in NAMESPACES if _offers_any(space)}
        try:
            torch.ops.load_library(item)
        except OSError as error:
            raise DependencyError(
                f"{item} does not load: {error}",
                f"a library in {VARIABLE} built for torch {torch.__version__}",
                "correct the path, or take it out",
            ) from error
        added = [space for space in NAMESPACES if _offers_any(space) and space not in before]
        if not added:
            raise DependencyError(
                f"{item} registers no {PREFILL} or {DECODE} under {', '.join(NAMESPACES)}",
                "vLLM's or SGLang's FlashMLA library",
                f"take it out of {VARIABLE}",
            )
        libraries += [OpLibrary(name=f"{Path(item).name}", namespace=space) for space in added]
    return libraries


def prefill_call(library: OpLibrary, inputs: PrefillInputs) -> Callable[[], Any]:
    """Return a prefill call on our tensors; its result starts with out, max_logits, lse."""
    return library.bind(
        PREFILL,
        q=inputs.q,
        kv=inputs.kv,
        indices=inputs.indices,
        sm_scale=inputs.sm_scale,
        d_v=512,
        attn_sink=inputs.attn_sink,
        topk_length=inputs.topk_length,
    )


def decode_call(library: OpLibrary, inputs: DecodeInputs) -> Callable[[], Any]:
    """Return a decode call over the same keys in V4's 584-byte records, SM90's only form.

    Scheduling metadata is made by one call here, so that what is timed can be captured.
    """
    cache = as_v4_cache(inputs.k_cache, inputs.indices, inputs)
    values: dict[str, Any] = {
        "q": inputs.q,
        "kv": cache,
        "indices": inputs.indices,
        "topk_length": inputs.topk_length,
        "attn_sink": inputs.attn_sink,
        "d_v": 512,
        "sm_scale": inputs.sm_scale,
    }
    if inputs.extra_k_cache is not None and inputs.extra_indices is not None:
        values["extra_kv"] = as_v4_cache(inputs.extra_k_cache, inputs.extra_indices, inputs)
        values["extra_indices"] = inputs.extra_indices
        values["extra_topk_length"] = inputs.extra_topk_length
    _, _, metadata, num_splits = library.bind(DECODE, **values)()
    return library.bind(DECODE, **values, tile_scheduler_metadata=metadata, num_splits=num_splits)


def as_v4_cache(cache: torch.Tensor, indices: torch.Tensor, inputs: DecodeInputs) -> torch.Tensor:
    """Copy the listed slots of a cache into 584-byte records at the same slots."""
    layout = inputs.layout if cache is inputs.k_cache else inputs.extra_layout
    assert layout is not None, "a second cache without its layout"
    page_bytes = cache.shape[1] * V4_FP8.bytes_per_token
    stride = -(-page_bytes // _V4_PAGE_MULTIPLE) * _V4_PAGE_MULTIPLE
    converted = empty_cache(cache.shape[0], cache.shape[1], V4_FP8, stride, cache.device)
    used = indices.unique()
    used = used[used >= 0]
    for start in range(0, used.numel(), 1 << 18):
        part = used[start : start + (1 << 18)]
        write_kv(converted, part, read_kv(cache, part, layout).to(torch.bfloat16), V4_FP8)
    return converted


def _offers_any(namespace: str) -> bool:
    space = getattr(torch.ops, namespace)
    return hasattr(space, PREFILL) or hasattr(space, DECODE)
