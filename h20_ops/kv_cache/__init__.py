"""KV-cache records: described, written, read and identified; the layout is always an argument."""

from __future__ import annotations

from h20_ops.kv_cache.identify import identify_layout as identify_layout
from h20_ops.kv_cache.layouts import INDEX_FP8_FP32 as INDEX_FP8_FP32
from h20_ops.kv_cache.layouts import INDEX_MXFP4 as INDEX_MXFP4
from h20_ops.kv_cache.layouts import INDEX_MXFP8 as INDEX_MXFP8
from h20_ops.kv_cache.layouts import LAYOUTS as LAYOUTS
from h20_ops.kv_cache.layouts import V4_FP8 as V4_FP8
from h20_ops.kv_cache.layouts import V32_FP8 as V32_FP8
from h20_ops.kv_cache.layouts import V41_FP4 as V41_FP4
from h20_ops.kv_cache.layouts import V41_FP4_PAGE_SPLIT as V41_FP4_PAGE_SPLIT
from h20_ops.kv_cache.layouts import V41_FP8 as V41_FP8
from h20_ops.kv_cache.layouts import V41_FP8_PAGE_SPLIT as V41_FP8_PAGE_SPLIT
from h20_ops.kv_cache.layouts import Field as Field
from h20_ops.kv_cache.layouts import KvLayout as KvLayout
from h20_ops.kv_cache.records import field_view as field_view
from h20_ops.kv_cache.records import read_kv as read_kv
from h20_ops.kv_cache.records import write_kv as write_kv

__all__ = [
    "INDEX_FP8_FP32",
    "INDEX_MXFP4",
    "INDEX_MXFP8",
    "LAYOUTS",
    "V4_FP8",
    "V32_FP8",
    "V41_FP4",
    "V41_FP4_PAGE_SPLIT",
    "V41_FP8",
    "V41_FP8_PAGE_SPLIT",
    "Field",
    "KvLayout",
    "field_view",
    "identify_layout",
    "read_kv",
    "write_kv",
]
