"""`inv parity layout`: which KV record a store function writes, and which one a load function reads."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from dih20.errors import ParityDiverged, UsageError
from h20_ops.errors import LayoutError
from h20_ops.kv_cache import LAYOUTS, KvLayout, identify_layout, read_kv, write_kv

_PAGES, _PAGE_SIZE, _GAP = 4, 6, 1056


def load_function(path: str, num_arguments: int) -> Callable[..., Any]:
    """Import "package.module:function", which must take so many arguments."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as missing:
        raise UsageError(
            found=f"{path!r} cannot be imported: {missing}",
            expected='"package.module:function", on the Python path',
            remedy="correct the name, or set PYTHONPATH to where the module lies",
        ) from missing
    if not callable(found):
        raise UsageError(
            found=f"{path!r} is a {type(found).__name__}",
            expected="a function store(cache, slots, kv), or load(cache, slots) -> kv",
            remedy="name a function",
        )
    try:
        inspect.signature(found).bind(*range(num_arguments))
    except TypeError as other:
        raise UsageError(
            found=f"{path!r} does not take {num_arguments} arguments: {other}",
            expected="store(cache, slots, kv), or load(cache, slots) -> kv",
            remedy="name a function with these arguments; wrap yours if it has others",
        ) from other
    return found  # type: ignore[no-any-return]


def compare_layouts(
    store: str, load: str, *, bytes_per_token: int, head_dim: int
) -> dict[str, Any]:
    """Give the layouts that a store and a load function use; they must be one.

    Raises ParityDiverged when they are not, or when the store's bytes fit no known layout.
    """
    try:
        written = identify_layout(
            load_function(store, 3), bytes_per_token=bytes_per_token, head_dim=head_dim
        )
    except LayoutError as fault:
        raise ParityDiverged(
            found=fault.found, expected=fault.expected, remedy=fault.next_step
        ) from fault
    reader = load_function(load, 2)
    known = [
        x
        for x in LAYOUTS.values()
        if (x.bytes_per_token, x.head_dim) == (bytes_per_token, head_dim)
    ]
    understood = [layout.name for layout in known if reads(reader, layout)]
    if written.name not in understood:
        raise ParityDiverged(
            found=f"{store} writes {written.name}, {load} reads {' or '.join(understood) or 'none we know'}",
            expected="one layout for both",
            remedy=f"make {load} read\n{written.describe()}",
        )
    return {"store": written.name, "load": written.name, "layout": written.describe()}


def reads(load: Callable[..., Any], layout: KvLayout) -> bool:
    """Say whether load(cache, slots) gives back what was written in a layout, on pages that lie apart."""
    page = _PAGE_SIZE * layout.bytes_per_token
    stride = page + _GAP
    memory = torch.zeros(_PAGES * stride, dtype=torch.uint8)
    width = layout.bytes_per_token
    cache = memory.as_strided((_PAGES, _PAGE_SIZE, 1, width), (stride, width, width, 1))
    slots = torch.arange(_PAGE_SIZE, 3 * _PAGE_SIZE, dtype=torch.int32).flip(0)
    kv = torch.randn(len(slots), layout.head_dim, generator=torch.Generator().manual_seed(0))
    write_kv(cache, slots, kv.bfloat16(), layout)
    got = load(cache, slots)
    return bool(torch.equal(got.float().view(len(slots), -1), read_kv(cache, slots, layout)))
