"""`inv parity layout`: a store and a load that do not speak of the same bytes are told apart."""

from __future__ import annotations

import pytest
import torch

from dih20.errors import ParityDiverged, UsageError
from dih20.parity.layouts import compare_layouts
from h20_ops.kv_cache import V41_FP4, V41_FP8, V41_FP8_PAGE_SPLIT, read_kv, write_kv

pytestmark = pytest.mark.torch
HERE = __name__


def store(cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    write_kv(cache, slots, kv, V41_FP8)


def store_split(cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    write_kv(cache, slots, kv, V41_FP8_PAGE_SPLIT)


def store_fp4(cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    write_kv(cache, slots, kv, V41_FP4)


def load(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return read_kv(cache, slots, V41_FP8)


def load_fp4(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return read_kv(cache, slots, V41_FP4)


def load_dense(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Multiply the slot by the record, as if pages lay side by side."""
    _, size, _, width = cache.shape
    dense = cache.as_strided(cache.shape, (size * width, width, width, 1))
    return read_kv(dense, slots, V41_FP8)


def compared(store_name: str, load_name: str, bytes_per_token: int = 528) -> dict[str, str]:
    return compare_layouts(
        f"{HERE}:{store_name}", f"{HERE}:{load_name}", bytes_per_token=bytes_per_token, head_dim=512
    )


def test_a_pair_of_one_layout_is_named() -> None:
    assert compared("store", "load")["store"] == V41_FP8.name
    assert compared("store_fp4", "load_fp4", 288)["load"] == V41_FP4.name


def test_page_split_stored_and_interleaved_read_is_a_divergence() -> None:
    with pytest.raises(
        ParityDiverged, match=f"writes {V41_FP8_PAGE_SPLIT.name}.*reads {V41_FP8.name}"
    ):
        compared("store_split", "load")


def test_a_load_that_ignores_the_page_stride_reads_no_layout() -> None:
    with pytest.raises(ParityDiverged, match="reads none we know"):
        compared("store", "load_dense")


@pytest.mark.parametrize(
    "name", ["no.such.module:x", f"{HERE}:nothing", f"{HERE}:HERE", f"{HERE}:load"]
)
def test_a_name_that_is_no_store_function_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        compare_layouts(name, f"{HERE}:load", bytes_per_token=528, head_dim=512)
