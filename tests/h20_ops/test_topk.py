"""Top-k of rows with lengths: exact sets, ascending, ties and NaN as documented (F39, F41)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h20_ops.topk import topk

pytestmark = pytest.mark.torch


def by_hand(row: torch.Tensor, k: int, end: int) -> list[int]:
    """The k largest before end: by value, then the lower column; NaN never."""
    columns = [c for c in range(end) if not bool(row[c].isnan())]
    ranked = sorted(columns, key=lambda c: (-float(row[c]), c))
    return sorted(ranked[:k])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_row_gets_its_k_largest_ascending(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, 45))
    special = st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0])
    value = st.one_of(
        special, st.integers(-3, 3).map(float), st.floats(-(2.0**99), 2.0**99, width=32)
    )
    table = [[data.draw(value) for _ in range(columns)] for _ in range(rows)]
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    given_rows = torch.tensor(table, dtype=torch.float32).to(dtype)
    ends = [data.draw(st.integers(0, columns)) for _ in range(rows)]
    flags = torch.zeros(rows, dtype=torch.bool)
    values, indices = topk(
        given_rows, k, end=torch.tensor(ends, dtype=torch.int32), sorted_index=True, nan_rows=flags
    )
    assert values is not None and values.dtype == dtype
    for row in range(rows):
        want = by_hand(given_rows[row], k, ends[row])
        assert indices[row].tolist() == want + [-1] * (k - len(want))
        found = values[row, : len(want)]
        assert torch.equal(found, given_rows[row][want]) and bool(
            (values[row, len(want) :] == -torch.inf).all()
        )
        assert bool(flags[row]) == bool(given_rows[row, : ends[row]].isnan().any())


def test_ties_at_the_cut_go_to_the_lower_columns_every_time() -> None:
    scores = torch.rand(1, 4096, generator=torch.Generator().manual_seed(1)) * 0.5
    scores[0, 300:3900:12] = 0.75  # 300 equal scores across the cut
    scores[0, :300] = torch.linspace(0.8, 1.0, 300)
    first = topk(scores, 512)[1]
    assert first[0, 300:].tolist() == list(range(300, 3900, 12))[:212]
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 1, 2):
            torch.set_num_threads(number)
            assert torch.equal(topk(scores, 512)[1], first)
    finally:
        torch.set_num_threads(threads)


def test_nan_is_never_chosen_and_every_place_is_written() -> None:
    scores = torch.arange(24.0).view(3, 8)
    scores[0, [1, 5, 7]] = torch.nan
    scores[1] = torch.nan
    ends = torch.tensor([8, 8, 3], dtype=torch.int32)
    scores[2, 3:] = torch.nan  # behind the end: garbage
    out = torch.full((3, 6), 2143289344, dtype=torch.int32)
    flags = torch.zeros(3, dtype=torch.bool)
    values, indices = topk(
        scores,
        6,
        end=ends,
        indices_type=torch.int32,
        output_idx=out,
        nan_rows=flags,
        return_value=False,
    )
    assert values is None and indices is out
    assert out.tolist() == [[0, 2, 3, 4, 6, -1], [-1] * 6, [0, 1, 2, -1, -1, -1]]
    assert flags.tolist() == [True, True, False]


def test_offsets_go_to_real_columns_only_and_outputs_may_be_strided() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [5.0, 6.0, 7.0]])
    storage = torch.full((2, 16), 99, dtype=torch.int32)
    topk(
        scores,
        4,
        end=torch.tensor([3, 1], dtype=torch.int32),
        indices_type=torch.int32,
        output_idx=storage[:, 8:12],
        output_idx_offset=torch.tensor([100, 200], dtype=torch.int32),
        return_value=False,
    )
    assert storage[:, 8:12].tolist() == [[100, 101, 102, -1], [200, -1, -1, -1]]
    assert bool((storage[:, :8] == 99).all()) and bool((storage[:, 12:] == 99).all())


def test_sorted_is_by_value_with_equal_ones_ascending() -> None:
    scores = torch.tensor([[1.0, 4.0, 4.0, torch.inf, -torch.inf, 2.0]])
    values, indices = topk(scores, 8, sorted=True, idx_fill=7, value_fill=-1.0)
    assert indices.tolist() == [[3, 1, 2, 5, 0, 4, 7, 7]]
    assert values is not None
    assert values.tolist() == [[torch.inf, 4.0, 4.0, 2.0, 1.0, -torch.inf, -1.0, -1.0]]


def test_wide_rows_and_many_rows_agree_with_torch() -> None:
    generator = torch.Generator().manual_seed(2)
    wide = torch.randn(2, 1 << 18, generator=generator)
    values, _ = topk(wide, 512, sorted=True)
    assert torch.equal(values, wide.topk(512).values)
    many = torch.randn(300, 700, generator=generator).bfloat16()
    values, indices = topk(many, 64, indices_type=torch.int32)
    assert indices.dtype == torch.int32 and indices.is_contiguous()
    assert bool((indices[:, 1:] > indices[:, :-1]).all())
    assert torch.equal(values.sort(descending=True).values, many.topk(64).values)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"k": 0}, "k: 0"),
        ({"k": 4097}, "k: 4097"),
        ({"end": torch.zeros(2, dtype=torch.int64)}, "end: torch.int64"),
        ({"output_idx": torch.zeros(2, 3, dtype=torch.int64)}, "want \\(2, 4\\)"),
        ({"sorted": True, "sorted_index": True}, "exclude"),
        ({"sorted": True, "return_value": False}, "needs return_value"),
        ({"input": torch.zeros(2, 9, dtype=torch.float64)}, "float64"),
        ({"input": torch.zeros(9, 2).t()}, "last not 1"),
    ],
)
def test_what_breaks_the_contract_is_named(wrong: dict[str, object], says: str) -> None:
    given_now = {"input": torch.zeros(2, 9), "k": 4, **wrong}
    with pytest.raises(AssertionError, match=says):
        topk(given_now.pop("input"), given_now.pop("k"), **given_now)
