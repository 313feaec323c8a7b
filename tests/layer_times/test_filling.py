"""Weights and cache bytes made up on the spot are numbers, of the size that a layer expects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

from dih20.layer_times.caches import fill_cache  # noqa: E402
from dih20.layer_times.filling import fill  # noqa: E402


def model(**parameters: Any) -> SimpleNamespace:
    return SimpleNamespace(named_parameters=lambda: list(parameters.items()))


def parameter(*shape: int, dtype: Any = None) -> Any:
    return torch.nn.Parameter(
        torch.empty(shape, dtype=dtype or torch.float8_e4m3fn), requires_grad=False
    )


@pytest.mark.parametrize("shape", [(256, 512), (2, 256, 512)])
def test_a_product_with_a_filled_weight_keeps_the_size_of_its_input(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = parameter(*shape)
    assert fill(model(w=weight)) == weight.numel()
    assert weight.sf.shape == (*shape[:-2], 2, 4)
    assert weight.sf.dtype == torch.float32
    values = weight.data.float() * weight.sf.repeat_interleave(128, -2).repeat_interleave(128, -1)
    assert torch.isfinite(values).all()
    out = torch.randn(64, 512) @ values.reshape(-1, 512).t()
    assert 0.6 < float(out.std()) < 1.6


def test_engram_tables_keep_their_scales_per_32_columns() -> None:
    table = parameter(100, 128)
    table.is_engram, table.sf = True, torch.zeros(100, 4)
    fill(model(table=table))
    assert table.sf.shape == (100, 4)
    assert (table.sf == 1 / 16).all()


def test_norms_are_ones_and_vectors_zero() -> None:
    norm, bias = parameter(8, dtype=torch.bfloat16), parameter(8, dtype=torch.float32)
    fill(model(**{"attn.norm.weight": norm, "gate.bias": bias}))
    assert (norm == 1).all()
    assert (bias == 0).all()


@pytest.mark.parametrize("width", [528, 288])
def test_records_hold_no_nan(width: int) -> None:
    cache = torch.full((3, 4, 1, width), 0xFF, dtype=torch.uint8)
    fill_cache(cache)
    codes = cache[..., :512] if width == 528 else cache[..., 256:]
    assert (codes.view(torch.float8_e4m3fn).float().abs() <= 1.0).all()
    if width == 528:
        assert (cache[..., 512:] == 127).all()


def test_index_pages_keep_scales_behind_all_values_of_a_page() -> None:
    whole = torch.full((2, 64 * 68 + 32), 0xFF, dtype=torch.uint8)
    cache = torch.as_strided(whole, (2, 64, 1, 68), (64 * 68 + 32, 68, 68, 1))
    fill_cache(cache)
    scales = whole[:, 64 * 64 : 64 * 68]
    assert ((scales >= 125) & (scales <= 127)).all()
    assert (whole[:, 64 * 68 :] == 0xFF).all()
    assert len(whole[:, : 64 * 64].unique()) > 200
