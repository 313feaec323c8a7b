"""The decode twin against fp64 over bytes of an independent writer, and every edge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from h20_ops.kv_cache import V4_FP8, V41_FP4, V41_FP8, KvLayout, read_kv, write_kv
from h20_ops.testing.byte_writer import write_288, write_528
from h20_ops.testing.cases_decode import (
    WINDOW_STRIDE,
    DecodeCase,
    Scope,
    empty_cache,
    far_cases,
    make_decode,
    own_cases,
    upstream_cases,
)
from h20_ops.testing.compare import check_close
from h20_ops.testing.seeds import generator_for
from h20_ops.testing.tolerances import tolerance
from h20_ops.torch_ref import sparse_mla_decode, sparse_mla_prefill
from tests.h20_ops.naive_attention import attend_naively

pytestmark = pytest.mark.torch

SCALE = 512**-0.5


def filled(pages: int, size: int, layout: KvLayout, stride: int | None = None) -> torch.Tensor:
    """A cache whose every slot holds random values."""
    cache = empty_cache(pages, size, layout, stride)
    kv = torch.randn((pages * size, 512), generator=generator_for(f"cache {layout} {size}"))
    write_kv(cache, torch.arange(pages * size), kv, layout)
    return cache


def random_call(b: int = 2, s_q: int = 2, heads: int = 3) -> dict[str, Any]:
    rng = generator_for(f"decode {b} {s_q} {heads}")
    main, extra = (b, s_q, 11), (b, s_q, 17)
    return {
        "q": torch.randn((b, s_q, heads, 512), generator=rng).to(torch.bfloat16),
        "k_cache": filled(3, 5, V41_FP8, 5 * 528 + 96),
        "indices": torch.randint(-1, 15, main, generator=rng, dtype=torch.int32),
        "sm_scale": SCALE,
        "layout": V41_FP8,
        "extra_k_cache": filled(2, 7, V41_FP4, 7 * 288 + 1152),
        "extra_layout": V41_FP4,
        "extra_indices": torch.randint(-1, 14, extra, generator=rng, dtype=torch.int32),
    }


def check(call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    b, s_q, heads, width = call["q"].shape
    keys: list[list[torch.Tensor]] = [[] for _ in range(b * s_q)]
    for prefix, cache_name in (("", "k_cache"), ("extra_", "extra_k_cache")):
        if call.get(cache_name) is None:
            continue
        cache, layout = call[cache_name], call[f"{prefix}layout"]
        capacity = cache.shape[0] * cache.shape[1]
        values = read_kv(cache, torch.arange(capacity), layout)
        length = call.get(f"{prefix}topk_length")
        for row in range(b * s_q):
            listed = call[f"{prefix}indices"][row // s_q, row % s_q].tolist()
            counted = listed if length is None else listed[: int(length[row // s_q])]
            keys[row] += [values[i] for i in counted if i >= 0]
    want = attend_naively(call["q"].view(-1, heads, width), keys, SCALE, call.get("attn_sink"))
    out, lse = sparse_mla_decode(**call)
    assert out.shape == call["q"].shape and out.is_contiguous()
    assert lse.shape == (b, heads, s_q)
    assert lse.transpose(1, 2).is_contiguous(), "lse is a view of (b, s_q, heads)"
    check_close("out", out.view(-1, heads, width), want[0], tolerance("twin.out"))
    flat_lse = lse.transpose(1, 2).reshape(-1, heads)
    check_close("lse", flat_lse, want[2], tolerance("twin.fp32"))
    return out, lse


def test_two_scopes_share_one_softmax() -> None:
    check(random_call())


@pytest.mark.parametrize("layout", [V41_FP8, V41_FP4, V4_FP8], ids=str)
def test_every_512_channel_layout_serves_as_the_only_scope(layout: KvLayout) -> None:
    call = random_call()
    call |= {"k_cache": filled(3, 5, layout), "layout": layout}
    check({k: v for k, v in call.items() if not k.startswith("extra_")})


def test_sinks_and_lengths_apply_per_head_and_per_batch_row() -> None:
    call = random_call(b=3) | {
        "attn_sink": torch.tensor([1.5, -math.inf, math.inf]),
        "topk_length": torch.tensor([0, 3, 11], dtype=torch.int32),
        "extra_topk_length": torch.tensor([0, 17, 2], dtype=torch.int32),
    }
    out, lse = check(call)
    assert not out[0].any() and bool((lse[0] == math.inf).all())
    assert not out[:, :, 2].any()


def test_rows_of_only_minus_one_are_zero_with_infinite_lse() -> None:
    call = random_call()
    call["indices"][1] = -1
    call["extra_indices"][1, 0] = -1
    out, lse = check(call)
    assert not out[1, 0].any() and bool((lse[1, :, 0] == math.inf).all())
    assert bool(out[1, 1].any()) and not out.isnan().any()


def test_it_equals_prefill_over_the_dequantised_rows() -> None:
    call = random_call(b=4, s_q=1)
    main = read_kv(call["k_cache"], torch.arange(15), V41_FP8)
    extra = read_kv(call["extra_k_cache"], torch.arange(14), V41_FP4)
    shifted = torch.where(call["extra_indices"] >= 0, call["extra_indices"] + 15, -1)
    rows = torch.cat((call["indices"], shifted), dim=2).view(4, 1, -1).to(torch.int32)
    kv = torch.cat((main, extra)).to(torch.bfloat16)
    assert kv.float().equal(torch.cat((main, extra))), "dequantised rows are exact in bf16"
    want = sparse_mla_prefill(call["q"][:, 0], kv.unsqueeze(1), rows, sm_scale=SCALE)
    out, lse = sparse_mla_decode(**call)
    assert out[:, 0].equal(want[0]) and lse[..., 0].equal(want[2])


def test_bytes_of_an_independent_writer_give_the_same_answer() -> None:
    call = random_call()
    kv = torch.randn((29, 512), generator=generator_for("independent")).to(torch.bfloat16)
    rows = kv.double().tolist()
    for cache, write, first in (
        (call["k_cache"], write_528, 0),
        (call["extra_k_cache"], write_288, 15),
    ):
        pages, size, width = cache.shape[0], cache.shape[1], cache.shape[3]
        for page in range(pages):
            record = bytearray(size * width)
            for slot in range(size):
                write(record, 0, slot, rows[first + page * size + slot])
            cache[page] = torch.frombuffer(record, dtype=torch.uint8).view(size, 1, width)
    out, lse = check(call)
    ours = dict(call)
    for name, layout, first in (("k_cache", V41_FP8, 0), ("extra_k_cache", V41_FP4, 15)):
        fresh = empty_cache(call[name].shape[0], call[name].shape[1], layout)
        count = fresh.shape[0] * fresh.shape[1]
        write_kv(fresh, torch.arange(count), kv[first : first + count], layout)
        ours[name] = fresh
    again = sparse_mla_decode(**ours)
    assert again[0].equal(out) and again[1].equal(lse)


def test_generated_cases_are_poisoned_padded_and_still_finite() -> None:
    ring = Scope(s_k=134, topk=16, page_size=134, page_stride=WINDOW_STRIDE)
    extra = Scope(s_k=90, topk=24, page_size=7, page_stride=114_048)
    case = DecodeCase(b=3, main=ring, extra=extra, s_q=2, heads=2, length=True, zero_length=True)
    made = make_decode(case)
    assert made.k_cache.stride(0) == WINDOW_STRIDE and made.extra_k_cache is not None
    out, lse = sparse_mla_decode(made.q, made.k_cache, made.indices, **made.kwargs())
    assert not out.isnan().any() and not lse.isnan().any()
    assert not out[0].any(), "request 0 has no token"
    every_slot = torch.arange(made.k_cache.shape[0] * 134)
    assert bool(read_kv(made.k_cache, every_slot, V41_FP8).isnan().any()), "poison is there"


def test_repeated_rows_list_the_same_slots() -> None:
    scope = Scope(s_k=20, topk=24, page_size=7)
    made = make_decode(DecodeCase(b=2, s_q=5, main=scope, repeated_rows=True, heads=1))
    assert made.indices.equal(made.indices[:, :1].expand(2, 5, 24))


def test_cases_have_unique_names_and_cover_the_recipes() -> None:
    cases = [*upstream_cases(), *own_cases(), *far_cases()]
    assert len({case.id for case in cases}) == len(cases)
    assert {c.b for c in cases} >= {1, 4, 8, 74, 321} and {c.s_q for c in cases} >= {1, 3, 5}
    sizes = {c.main.page_size for c in cases}
    assert sizes >= {1, 2, 5, 53, 61, 64, 69, 129, 133, 134, 576}
    strides = {s.page_stride for c in cases for s in (c.main, c.extra) if s is not None}
    assert strides >= {114_048, 134_784, 3_128_928}
    assert any(c.extra is not None and c.extra.topk == 100 and c.heads == 128 for c in cases)
    assert {c.extra_layout for c in cases if c.extra is not None} == {V41_FP8, V41_FP4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": V41_FP4}, r"k_cache: \(pages, page_size, 1, 288\) expected for v41_fp4"),
        ({"extra_layout": None}, "come together"),
        ({"extra_indices": None}, "come together"),
        ({"indices": torch.zeros(2, 11, dtype=torch.int32)}, r"indices: shape \(2, 2, \*\)"),
        ({"indices": torch.zeros(2, 2, 0, dtype=torch.int32)}, "indices: topk > 0 expected"),
        ({"topk_length": torch.zeros(4, dtype=torch.int32)}, r"topk_length: shape \(2\) expected"),
    ],
)
def test_arguments_out_of_contract_are_refused_with_their_values(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        sparse_mla_decode(**(random_call() | change))


def test_a_length_of_the_second_scope_without_the_scope_is_a_mistake() -> None:
    call = {k: v for k, v in random_call().items() if not k.startswith("extra_")}
    with pytest.raises(AssertionError, match="extra_topk_length without an extra_k_cache"):
        sparse_mla_decode(**call, extra_topk_length=torch.zeros(2, dtype=torch.int32))


def test_a_case_id_names_what_is_not_the_default() -> None:
    case = DecodeCase(b=2, main=Scope(s_k=8, topk=4, page_size=3))
    assert case.id == "b=2-main=8.4.3"
    assert replace(case, heads=128, sink=False).id == "b=2-main=8.4.3-heads=128-sink=False"
