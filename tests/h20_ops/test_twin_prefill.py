"""The prefill twin against fp64, and every edge of the contract."""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any

import pytest
import torch

from h20_ops.testing.case_data import distinct_indices, neighbour_indices
from h20_ops.testing.cases_prefill import PrefillCase, make_prefill, own_cases, upstream_cases
from h20_ops.testing.compare import check_close
from h20_ops.testing.seeds import generator_for
from h20_ops.testing.tolerances import tolerance
from h20_ops.torch_ref import sparse_mla_prefill
from tests.h20_ops.naive_attention import attend_naively

pytestmark = pytest.mark.torch

SCALE = 512**-0.5


def random_call(s_q: int, s_kv: int, topk: int, heads: int = 3) -> dict[str, Any]:
    rng = generator_for(f"twin {s_q} {s_kv} {topk}")
    return {
        "q": torch.randn((s_q, heads, 512), generator=rng).to(torch.bfloat16),
        "kv": torch.randn((s_kv, 1, 512), generator=rng).to(torch.bfloat16),
        "indices": torch.randint(-2, s_kv + 2, (s_q, 1, topk), generator=rng, dtype=torch.int32),
        "sm_scale": SCALE,
    }


def expected(call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kv, length = call["kv"], call.get("topk_length")
    keys = []
    for row, listed in enumerate(call["indices"][:, 0].tolist()):
        counted = listed if length is None else listed[: int(length[row])]
        keys.append([kv[i, 0] for i in counted if 0 <= i < kv.shape[0]])
    return attend_naively(call["q"], keys, call["sm_scale"], call.get("attn_sink"))


def check(call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    got, want = sparse_mla_prefill(**call), expected(call)
    check_close("out", got[0], want[0], tolerance("twin.out"))
    check_close("max_logits", got[1], want[1], tolerance("twin.fp32"))
    check_close("lse", got[2], want[2], tolerance("twin.fp32"))
    return got


@pytest.mark.parametrize(("s_q", "s_kv", "topk"), [(1, 1, 1), (5, 40, 13), (4, 3, 20), (3, 70, 64)])
def test_it_equals_fp64_with_invalid_and_repeated_indices_anywhere(
    s_q: int, s_kv: int, topk: int
) -> None:
    check(random_call(s_q, s_kv, topk))


def test_a_sink_enlarges_only_the_denominator() -> None:
    call = random_call(4, 30, 12)
    without = check(call)
    with_sink = check(call | {"attn_sink": torch.tensor([0.7, -math.inf, math.inf])})
    assert with_sink[1].equal(without[1]) and with_sink[2].equal(without[2])
    assert with_sink[0][:, 1].equal(without[0][:, 1])
    assert not with_sink[0][:, 2].any()
    assert bool((with_sink[0][:, 0].abs() <= without[0][:, 0].abs()).all())


def test_lengths_cut_rows_and_zero_empties_them() -> None:
    call = random_call(4, 30, 12) | {"topk_length": torch.tensor([0, 1, 7, 12], dtype=torch.int32)}
    out, max_logits, lse = check(call)
    assert not out[0].any()
    assert bool((max_logits[0] == -math.inf).all()) and bool((lse[0] == math.inf).all())


@pytest.mark.parametrize("sink", [None, 0.0, -math.inf, math.inf])
def test_a_row_without_a_valid_index_is_zero_with_infinite_lse(sink: float | None) -> None:
    call = random_call(3, 10, 8)
    call["indices"][1] = torch.tensor([-1, 10, 11, -5, 2**31 - 1, -(2**31), -1, 10])
    call["attn_sink"] = None if sink is None else torch.full((3,), sink)
    out, max_logits, lse = check(call)
    assert not out[1].any() and not out.isnan().any()
    assert bool((max_logits[1] == -math.inf).all()) and bool((lse[1] == math.inf).all())


def test_nan_in_rows_that_are_not_selected_does_not_leak() -> None:
    call = random_call(4, 30, 12)
    call["indices"][call["indices"] == 5] = -1
    call["kv"][5] = math.nan
    call["kv"][0] = math.nan
    call["indices"][call["indices"] == 0] = 30
    assert not any(x.isnan().any() for x in check(call))


def test_selected_nan_is_not_hidden() -> None:
    call = random_call(2, 30, 12)
    call["indices"][1, 0, 3] = 7
    call["kv"][7] = math.nan
    assert bool(sparse_mla_prefill(**call)[0][1].isnan().all())


def test_there_is_no_causal_rule() -> None:
    """Query 0 sees the key of the last row: the rule that once emptied every prefill row."""
    call = random_call(2, 9, 1)
    call["indices"][:] = 8
    out = sparse_mla_prefill(**call)[0]
    assert out.equal(call["kv"][8].expand(2, 3, 512))


def test_repeated_indices_count_as_often_as_listed() -> None:
    call = random_call(1, 2, 4)
    call["indices"][0, 0] = torch.tensor([0, 0, 0, 1])
    check(call)
    once = sparse_mla_prefill(**(call | {"indices": call["indices"][..., 2:]}))
    assert not sparse_mla_prefill(**call)[2].equal(once[2])


def test_large_logits_do_not_overflow() -> None:
    call = random_call(2, 30, 12)
    call["kv"][::3] *= 256
    assert all(not x.isnan().any() for x in check(call))


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    call = random_call(7, 30, 12)
    whole = sparse_mla_prefill(**call)
    twin_module = importlib.import_module("h20_ops.torch_ref.sparse_mla_prefill")
    monkeypatch.setattr(twin_module, "rows_per_chunk", lambda *_: 2)
    for name, got, want in zip("oml", sparse_mla_prefill(**call), whole, strict=True):
        check_close(name, got, want, tolerance("twin.out" if name == "o" else "twin.fp32"))


def test_strides_of_rows_are_free() -> None:
    case = PrefillCase(s_q=5, s_kv=40, topk=18, heads=4, strided=True, length=True)
    made = make_prefill(case)
    assert not made.q.is_contiguous() and not made.kv.is_contiguous()
    assert made.indices.stride(0) == 20
    call = {
        "q": made.q,
        "kv": made.kv,
        "indices": made.indices,
        "sm_scale": made.sm_scale,
        "attn_sink": made.attn_sink,
        "topk_length": made.topk_length,
    }
    check(call)


def test_an_empty_kv_buffer_gives_empty_rows() -> None:
    call = random_call(2, 3, 4) | {"kv": torch.empty((0, 1, 512), dtype=torch.bfloat16)}
    out, max_logits, lse = sparse_mla_prefill(**call)
    assert not out.any() and bool((lse == math.inf).all()) and bool((max_logits == -math.inf).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 3, 576, dtype=torch.bfloat16)}, r"q: shape \(\*, \*, 512\) expected"),
        ({"q": torch.zeros(2, 3, 512)}, "q: torch.bfloat16 expected, got torch.float32"),
        ({"kv": torch.zeros(9, 2, 512, dtype=torch.bfloat16)}, r"kv: shape .* got \(9, 2, 512\)"),
        ({"indices": torch.zeros(2, 1, 4, dtype=torch.int64)}, "indices: torch.int32 expected"),
        ({"indices": torch.zeros(3, 1, 4, dtype=torch.int32)}, r"\(2, 1, \*\) expected, got \(3"),
        ({"indices": torch.zeros(2, 1, 8, dtype=torch.int32)[..., ::2]}, "must be contiguous"),
        ({"d_v": 256}, "d_v: 512 expected, got 256"),
        ({"attn_sink": torch.zeros(4)}, r"attn_sink: shape \(3\) expected, got \(4,\)"),
        ({"topk_length": torch.zeros(2)}, "topk_length: torch.int32 expected"),
    ],
)
def test_arguments_out_of_contract_are_refused_with_their_values(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        sparse_mla_prefill(**(random_call(2, 9, 4) | change))


def test_cases_have_unique_names_and_repeat_exactly() -> None:
    cases = [*upstream_cases(), *own_cases()]
    assert len({case.id for case in cases}) == len(cases)
    case = PrefillCase(s_q=3, s_kv=50, topk=20, poisoned=True)
    first, second = make_prefill(case), make_prefill(case)
    assert first.indices.equal(second.indices)
    assert first.kv.nan_to_num(7.0).equal(second.kv.nan_to_num(7.0))
    assert bool(first.kv.isnan().any())


def test_upstream_recipes_are_all_there() -> None:
    cases = list(upstream_cases())
    assert {c.heads for c in cases} == {64, 128}
    assert {1, 62, 213, 1234, 4096, 70_000} <= {c.s_q for c in cases}
    assert {(c.s_kv, c.topk) for c in cases} >= {(592, 128), (114, 384), (32, 2048), (64, 8192)}
    assert any(c.amplified for c in cases) and any(c.length and c.sink for c in cases)
    assert sum(c.indices == "all_invalid" for c in cases) == 8


def test_random_index_rows_are_distinct_and_mix_their_gaps() -> None:
    rng = generator_for("distinct")
    rows = distinct_indices(50, 40, torch.full((50,), 30), rng)
    for row in rows.tolist():
        listed = [i for i in row if i >= 0]
        assert sorted(listed) == list(range(30))
    assert any(row[-1] >= 0 for row in rows.tolist())


def test_neighbouring_rows_share_most_of_their_indices() -> None:
    rows = neighbour_indices(20, 100, 5000, keep=0.8).tolist()
    for before, after in itertools.pairwise(rows):
        assert len(set(after)) == 100 and min(after) >= 0 and max(after) < 5000
        assert len(set(before) & set(after)) == 80
