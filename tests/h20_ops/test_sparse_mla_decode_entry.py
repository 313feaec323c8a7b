"""What sparse_mla_decode refuses, and how it describes caches to its kernel; no GPU needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from h20_ops import sparse_mla_decode
from h20_ops.cuda import sparse_mla_decode_kernel as kernel
from h20_ops.errors import DeviceError, UnsupportedError
from h20_ops.kv_cache import V41_FP4, V41_FP8, V41_FP8_PAGE_SPLIT, KvLayout
from h20_ops.sparse_mla_decode import _check_supported, _scope
from h20_ops.testing.cases_decode import DecodeCase, Scope, make_decode

pytestmark = pytest.mark.torch
CASE = DecodeCase(
    b=2,
    main=Scope(s_k=20, topk=8, page_size=5),
    extra=Scope(s_k=20, topk=8, page_size=4),
)


def test_tensors_on_the_cpu_are_refused_with_the_twin_named() -> None:
    inputs = make_decode(CASE)
    with pytest.raises(DeviceError, match=r"torch_ref\.sparse_mla_decode"):
        sparse_mla_decode(inputs.q, inputs.k_cache, inputs.indices, **inputs.kwargs())


def test_wrong_arguments_are_named_before_the_device_is_looked_at() -> None:
    inputs = make_decode(CASE)
    with pytest.raises(AssertionError, match=r"q: torch\.bfloat16 expected, got torch\.float32"):
        sparse_mla_decode(inputs.q.float(), inputs.k_cache, inputs.indices, **inputs.kwargs())
    alone = replace(inputs, extra_indices=None)
    with pytest.raises(AssertionError, match="come together"):
        sparse_mla_decode(alone.q, alone.k_cache, alone.indices, **alone.kwargs())


@pytest.mark.parametrize(
    "layout,extra",
    [(V41_FP4, None), (V41_FP8_PAGE_SPLIT, None), (V41_FP8, V41_FP8_PAGE_SPLIT)],
    ids=str,
)
def test_records_without_a_kernel_are_refused(layout: KvLayout, extra: KvLayout | None) -> None:
    with pytest.raises(UnsupportedError, match=str(extra or layout)):
        _check_supported(64, layout, extra)


def test_head_counts_without_a_kernel_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="96 query heads"):
        _check_supported(96, V41_FP8, None)


def test_each_supported_pair_of_records_has_its_own_kernel() -> None:
    kinds = [_check_supported(64, V41_FP8, extra) for extra in (None, V41_FP8, V41_FP4)]
    assert sorted(kinds) == sorted(kernel.EXTRA_KINDS.values()) == [0, 1, 2]


def test_a_scope_takes_strides_from_the_tensors() -> None:
    cache = torch.zeros((3, 114_048), dtype=torch.uint8).as_strided(
        (3, 128, 1, 288), (114_048, 288, 288, 1)
    )
    indices = torch.zeros((4, 2, 520), dtype=torch.int32)[..., :512]
    scope = _scope("extra_k_cache", cache, indices, None)
    assert (scope.page_stride, scope.page_size) == (114_048, 128)
    assert (scope.batch_stride, scope.query_stride, scope.topk) == (1040, 520, 512)
    assert (scope.cache, scope.lengths) == (cache.data_ptr(), None)
    assert 1000 * scope.page_multiplier >> (31 + scope.page_shift) == 1000 // 128


@pytest.mark.parametrize("offset,stride", [(8, 5 * 528), (0, 5 * 528 + 8)])
def test_a_cache_off_sixteen_bytes_is_refused_with_its_numbers(offset: int, stride: int) -> None:
    memory = torch.zeros(20_000, dtype=torch.uint8)
    base = -memory.data_ptr() % 16 + offset
    cache = memory[base:].as_strided((3, 5, 1, 528), (stride, 528, 528, 1))
    with pytest.raises(AssertionError, match=f"multiples of 16 bytes.*stride\\(0\\) {stride}"):
        _scope("k_cache", cache, torch.zeros((1, 1, 4), dtype=torch.int32), None)


def test_a_missing_scope_lists_nothing() -> None:
    scope = _scope("extra_k_cache", None, None, None)
    assert (scope.topk, scope.cache, scope.page_size) == (0, None, 1)
