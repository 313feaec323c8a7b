"""The flash_mla drop-in: upstream's names and signatures, its asserts, and no silent fallback."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import flash_mla
import pytest
import torch
from flash_mla import (
    flash_mla_interface,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from flash_mla.flash_mla_interface import FlashMLASchedMeta

from h20_ops import torch_ref
from h20_ops.errors import DeviceError, UnsupportedError
from h20_ops.kv_cache import V41_FP4, V41_FP8
from h20_ops.testing.cases_decode import DecodeCase, Scope, make_decode
from h20_ops.testing.cases_prefill import PrefillCase, make_prefill

pytestmark = pytest.mark.torch

RING = Scope(s_k=134, topk=128, page_size=134, page_stride=134 * 528 + 1056)
PAGES = Scope(s_k=300, topk=64, page_size=64, page_stride=114_048)


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H20_OPS_BACKEND", "twin")


def decode_call(extra: bool = True, **change: Any) -> dict[str, Any]:
    """The keywords of the engine's call, on a small case."""
    case = DecodeCase(b=3, main=RING, extra=PAGES if extra else None, heads=2)
    made = make_decode(case)
    call: dict[str, Any] = {
        "q": made.q,
        "k_cache": made.k_cache,
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": FlashMLASchedMeta(),
        "softmax_scale": made.sm_scale,
        "causal": False,
        "is_fp8_kvcache": True,
        "indices": made.indices,
        "attn_sink": made.attn_sink,
        "extra_k_cache": made.extra_k_cache,
        "extra_indices_in_kvcache": made.extra_indices,
        "topk_length": None,
        "extra_topk_length": None,
        "enable_batch_invariant": False,
    }
    return call | change


def twin_of(call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    extra = call["extra_k_cache"] is not None
    return torch_ref.sparse_mla_decode(
        call["q"],
        call["k_cache"],
        call["indices"],
        sm_scale=call["softmax_scale"],
        layout=V41_FP8,
        attn_sink=call["attn_sink"],
        extra_k_cache=call["extra_k_cache"],
        extra_layout=V41_FP4 if extra else None,
        extra_indices=call["extra_indices_in_kvcache"],
    )


def names(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_signatures_are_upstreams_in_order() -> None:
    assert names(flash_mla_sparse_fwd) == (
        ["q", "kv", "indices", "sm_scale", "d_v", "attn_sink", "topk_length"]
    )
    assert names(flash_mla_with_kvcache) == (
        ["q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata"]
        + ["num_splits", "softmax_scale", "causal", "is_fp8_kvcache", "indices", "attn_sink"]
        + ["extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length"]
        + ["enable_batch_invariant"]
    )
    from flash_mla import fused_norm_rope_attn_rope_cast as fused

    common = (
        ["enable_q_norm", "rms_norm_eps", "token_positions", "is_rope_neox_style", "rope_dim"]
        + ["cos_sin_cache", "n_wv_group", "num_per_channels", "use_tma_aligned_col_major_sf"]
        + ["round_sf", "use_packed_ue8m0", "q"]
    )
    tail = ["sm_scale", "d_v", "attn_sink", "topk_length"]
    extra = ["extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"]
    assert names(fused.prefill) == [*common, "kv", "indices", *tail]
    assert names(fused.decode) == [*common, "k_cache", "indices_in_kvcache", *tail, *extra]


def test_it_says_what_it_is() -> None:
    assert "h20" in flash_mla.__version__ and flash_mla.IS_H20_DROP_IN
    assert "not DeepSeek's package" in (flash_mla.__doc__ or "")
    assert all(hasattr(flash_mla, name) for name in flash_mla.__all__)


def test_a_cpu_call_raises_in_three_parts_and_never_falls_back() -> None:
    made = make_prefill(PrefillCase(s_q=2, s_kv=9, topk=8, heads=64))
    with pytest.raises(DeviceError, match=r"(?s)found: .*cpu.*expected: .*SM90.*next: "):
        flash_mla_sparse_fwd(made.q, made.kv, made.indices, made.sm_scale)
    call = decode_call()
    with pytest.raises(DeviceError, match=r"(?s)found: .*cpu.*expected: .*SM90.*next: "):
        flash_mla_with_kvcache(**call)
    assert not call["tile_scheduler_metadata"].have_initialized, "a failed call fills nothing"


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H20_OPS_BACKEND", "cpu")
    with pytest.raises(UnsupportedError, match="H20_OPS_BACKEND='cpu'"):
        flash_mla_with_kvcache(**decode_call())


@pytest.mark.usefixtures("twin")
def test_sparse_fwd_is_the_prefill_operator() -> None:
    made = make_prefill(PrefillCase(s_q=5, s_kv=40, topk=20, heads=3, length=True))
    got = flash_mla_sparse_fwd(
        made.q,
        made.kv,
        made.indices,
        sm_scale=made.sm_scale,
        attn_sink=made.attn_sink,
        topk_length=made.topk_length,
    )
    want = torch_ref.sparse_mla_prefill(
        made.q,
        made.kv,
        made.indices,
        sm_scale=made.sm_scale,
        attn_sink=made.attn_sink,
        topk_length=made.topk_length,
    )
    assert all(a.equal(b) for a, b in zip(got, want, strict=True))


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("extra", [True, False])
def test_with_kvcache_is_the_decode_operator(extra: bool) -> None:
    call = decode_call(extra)
    out, lse = flash_mla_with_kvcache(**call)
    want = twin_of(call)
    assert out.equal(want[0]) and lse.equal(want[1])
    assert out.squeeze(1).shape == (3, 2, 512) and lse.squeeze(-1).shape == (3, 2)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_cache_may_come_as_any_one_byte_dtype(dtype: torch.dtype) -> None:
    call = decode_call()
    want = flash_mla_with_kvcache(**call)[0]
    call["k_cache"] = call["k_cache"].view(dtype)
    call["extra_k_cache"] = call["extra_k_cache"].view(dtype)
    assert flash_mla_with_kvcache(**call)[0].equal(want)


@pytest.mark.usefixtures("twin")
def test_the_scale_defaults_to_the_width_of_q() -> None:
    call = decode_call()
    default = flash_mla_with_kvcache(**(call | {"softmax_scale": None}))[0]
    explicit = flash_mla_with_kvcache(**(call | {"softmax_scale": 512**-0.5}))[0]
    assert default.equal(explicit)


@pytest.mark.usefixtures("twin")
def test_metadata_is_filled_by_the_first_call_and_fits_the_next() -> None:
    assert get_mla_metadata(1, 2, key=3)[1] is None
    by_kind: defaultdict[str, FlashMLASchedMeta] = defaultdict(FlashMLASchedMeta)
    call = decode_call(tile_scheduler_metadata=by_kind["c4"])
    flash_mla_with_kvcache(**call)
    meta = by_kind["c4"]
    assert meta.have_initialized and meta.config is not None
    assert (meta.config.b, meta.config.page_block_size, meta.config.topk) == (3, 134, 128)
    assert (meta.config.extra_page_block_size, meta.config.extra_topk) == (64, 64)
    assert meta.tile_scheduler_metadata is None and meta.num_splits is None
    flash_mla_with_kvcache(**(call | {"tile_scheduler_metadata": copy.copy(meta)}))
    fresh = FlashMLASchedMeta()
    for name, value in vars(meta).items():
        setattr(fresh, name, value)
    flash_mla_with_kvcache(**(call | {"tile_scheduler_metadata": fresh}))


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.zeros((3, 1, 64), dtype=torch.int32)}, "topk: .* made for 128, .* 64"),
        (
            {"enable_batch_invariant": True},
            "enable_batch_invariant: .* False, now called with True",
        ),
        (
            {"extra_k_cache": None, "extra_indices_in_kvcache": None},
            "extra_page_block_size: .* made for 64, now called with None",
        ),
        ({"q": torch.zeros((3, 1, 4, 512), dtype=torch.bfloat16)}, "h_q: .* made for 2, .* 4"),
    ],
)
def test_metadata_refuses_another_combination(change: dict[str, Any], message: str) -> None:
    call = decode_call()
    flash_mla_with_kvcache(**call)
    with pytest.raises(AssertionError, match=message):
        flash_mla_with_kvcache(**(call | change))


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal": True}, "causal must be False"),
        ({"num_splits": torch.zeros(4)}, "num_splits must be None"),
        ({"is_fp8_kvcache": False}, "is_fp8_kvcache must be True"),
        ({"indices": None}, "indices are required"),
        ({"head_dim_v": 256}, "head_dim_v: 512 expected, got 256"),
        ({"extra_k_cache": None}, "come together"),
        ({"tile_scheduler_metadata": None}, "FlashMLASchedMeta expected"),
        ({"k_cache": torch.zeros((2, 64, 1, 584), dtype=torch.uint8)}, r"\[528\] .* got 584"),
        ({"k_cache": torch.zeros((2, 64, 1, 288), dtype=torch.uint8)}, r"\[528\] .* got 288"),
        (
            {"extra_k_cache": torch.zeros((2, 64, 1, 592), dtype=torch.uint8)},
            r"\[288, 528\] .* 592",
        ),
        ({"k_cache": torch.zeros((2, 64, 1, 528), dtype=torch.bfloat16)}, "uint8, int8 or"),
    ],
)
def test_calls_out_of_contract_are_refused_with_their_values(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        flash_mla_with_kvcache(**decode_call(**change))


def test_the_interface_module_has_upstreams_names() -> None:
    for name in (
        "FlashMLASchedMeta",
        "flash_mla_sparse_fwd",
        "flash_mla_with_kvcache",
        "get_mla_metadata",
    ):
        assert hasattr(flash_mla_interface, name)
    assert not isinstance(FlashMLASchedMeta(), torch.Tensor)


def test_it_imports_without_torch_and_without_h20_ops() -> None:
    """A wheel is tried alone in its image; what it needs comes beside it later."""
    folder = Path(flash_mla.__file__).resolve().parents[1]
    code = (
        "import sys; sys.modules.update(torch=None, h20_ops=None)\n"
        "import flash_mla, flash_mla.flash_mla_interface as i\n"
        "print(i.FlashMLASchedMeta().have_initialized, flash_mla.__version__)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == f"False {flash_mla.__version__}"
