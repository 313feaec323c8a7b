"""Arguments that DeepGEMM's SM90 kernels misread or abort on are refused with their values (F44)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h20_ops import sm90_contracts
from h20_ops.errors import DependencyError, DeviceError, UnsupportedError
from h20_ops.sm90_contracts import refusal

pytestmark = pytest.mark.torch

E4M3 = torch.float8_e4m3fn
Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What reaches deep_gemm, on a machine without it: name, positional and keyword arguments."""
    seen: Calls = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def record(*args: Any, **named: Any) -> str:
                seen.append((name, args, named))
                return name

            return record

    monkeypatch.setitem(sys.modules, "deep_gemm", Recorder())
    monkeypatch.setattr(
        refusal, "deep_gemm_on", lambda call, tensor: sys.modules["deep_gemm"], raising=True
    )
    for module in (sm90_contracts.gemm, sm90_contracts.logits):
        monkeypatch.setattr(module, "deep_gemm_on", lambda call, tensor: sys.modules["deep_gemm"])
    return seen


def activations(m: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    columns = -(-k // 128)
    padded = -(-m // 4) * 4
    scales = torch.ones(columns, padded).t()[:m]
    return torch.zeros(m, k, dtype=E4M3), scales


def weight(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    *lead, n, k = shape
    return torch.zeros(shape, dtype=E4M3), torch.ones(*lead, -(-n // 128), -(-k // 128))


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def test_a_right_call_reaches_the_kernel_with_the_sm90_recipe(calls: Calls) -> None:
    sm90_contracts.fp8_gemm_nt(activations(5, 256), weight(384, 256), bf16(5, 384))
    ((name, _, named),) = calls
    assert (name, named) == ("fp8_fp4_gemm_nt", {"recipe": (1, 128, 128)})


def test_no_rows_give_an_empty_result_without_a_kernel(calls: Calls) -> None:
    sm90_contracts.fp8_gemm_nt(activations(0, 256), weight(128, 256), bf16(0, 128))
    ends = torch.zeros(2, dtype=torch.int32)
    sm90_contracts.m_grouped_fp8_gemm_nt_contiguous(
        activations(0, 256), weight(2, 128, 256), bf16(0, 128), ends
    )
    assert calls == []


def test_packed_exponents_of_the_right_shape_are_refused_as_such(calls: Calls) -> None:
    values, _ = activations(4, 256)
    packed = torch.full((4, 2), 0x77777777, dtype=torch.int32)
    with pytest.raises(UnsupportedError) as refused:
        sm90_contracts.fp8_gemm_nt((values, packed), weight(128, 256), bf16(4, 128))
    assert "a[1].dtype is torch.int32, packed ue8m0" in refused.value.found
    assert "read as numbers" in refused.value.expected
    assert "SM90" in refused.value.expected
    assert calls == []


def test_one_row_blocks_that_the_grouped_kernel_would_misread_are_refused(calls: Calls) -> None:
    values, _ = weight(2, 256, 512)
    per_row = torch.ones(2, 256, 4)
    ends = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(UnsupportedError) as refused:
        sm90_contracts.m_grouped_fp8_gemm_nt_contiguous(
            activations(128, 512), (values, per_row), bf16(128, 256), ends
        )
    assert "(2, 256, 4)" in refused.value.found
    assert "(2, 2, 4)" in refused.value.expected
    with pytest.raises(UnsupportedError):
        sm90_contracts.fp8_einsum_bhr_hdr_bhd(
            (torch.zeros(3, 2, 512, dtype=E4M3), torch.ones(3, 2, 4)),
            (values, per_row),
            bf16(3, 2, 256),
        )
    assert calls == []


GEMM_FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "recipe of 32": ({"recipe": (1, 1, 32)}, "recipe is (1, 1, 32)", "(1, 128, 128)"),
    "recipe of another kernel": ({"recipe": (1, 1, 128)}, "recipe is (1, 1, 128)", "128x128"),
    "an accumulator": ({"c": bf16(6, 128)}, "c is a tensor (6, 128)", "None"),
    "an fp32 result": ({"d": torch.zeros(6, 128)}, "d.dtype is torch.float32", "bfloat16"),
    "a result of another shape": ({"d": bf16(6, 256)}, "(6, 256)", "(6, 128)"),
    "another k": ({"b": weight(128, 384)}, "(128, 384)", "(n, 256)"),
    "fp4 weights": (
        {"b": (torch.zeros(128, 256, dtype=torch.int8), torch.ones(1, 2))},
        "torch.int8",
        "float8_e4m3fn",
    ),
    "32-wide scales": (
        {"a": (torch.zeros(6, 256, dtype=E4M3), torch.ones(6, 8))},
        "(6, 8)",
        "(6, 2)",
    ),
    "rows not padded to 4": (
        {"a": (torch.zeros(6, 256, dtype=E4M3), torch.ones(2, 6).t())},
        "(1, 6)",
        "multiple of 4",
    ),
    "weight scales the other way round": (
        {"b": (torch.zeros(256, 256, dtype=E4M3), torch.ones(2, 2).t()), "d": bf16(6, 256)},
        "(1, 2)",
        "contiguous",
    ),
}


@pytest.mark.parametrize("fault", GEMM_FAULTS)
def test_a_wrong_gemm_argument_is_named_with_value_and_wish(calls: Calls, fault: str) -> None:
    changed, found, wanted = GEMM_FAULTS[fault]
    given = {"a": activations(6, 256), "b": weight(128, 256), "d": bf16(6, 128), **changed}
    with pytest.raises(UnsupportedError) as refused:
        sm90_contracts.fp8_gemm_nt(
            given["a"],
            given["b"],
            given["d"],
            given.get("c"),
            recipe=given.get("recipe", (1, 128, 128)),
        )
    assert found in refused.value.found
    assert wanted in refused.value.expected
    assert "SM90" in refused.value.expected
    assert calls == []


def masked(m: int) -> tuple[Any, Any, Any]:
    a = (torch.zeros(2, m, 256, dtype=E4M3), torch.ones(2, m, 2))
    return a, weight(2, 128, 256), bf16(2, m, 128)


def test_the_masked_form_keeps_counts_and_blocks_apart(calls: Calls) -> None:
    counts = torch.tensor([17, 0], dtype=torch.int32)
    sm90_contracts.m_grouped_fp8_gemm_nt_masked(*masked(128), counts, expected_m=17)
    assert calls[0][0] == "m_grouped_fp8_fp4_gemm_nt_masked"
    with pytest.raises(UnsupportedError, match="expected_m is 0"):
        sm90_contracts.m_grouped_fp8_gemm_nt_masked(*masked(128), counts, expected_m=0)
    with pytest.raises(UnsupportedError, match=r"num_rows\.dtype is torch\.int64"):
        sm90_contracts.m_grouped_fp8_gemm_nt_masked(*masked(128), counts.long(), expected_m=9)


@pytest.mark.parametrize("m", [8, 16, 32, 64, 192])
def test_tiles_that_would_reach_into_the_next_expert_are_refused(calls: Calls, m: int) -> None:
    counts = torch.tensor([m, 0], dtype=torch.int32)
    with pytest.raises(UnsupportedError) as refused:
        sm90_contracts.m_grouped_fp8_gemm_nt_masked(*masked(m), counts, expected_m=m)
    assert f"(m) is {m}" in refused.value.found and "multiple of 128" in refused.value.expected
    assert calls == []


def paged(**changed: Any) -> dict[str, Any]:
    given = {
        "q": torch.zeros(3, 1, 32, 128, dtype=E4M3),
        "cache": torch.zeros(4, 64, 1, 132, dtype=torch.uint8),
        "weights": torch.zeros(3, 32),
        "context_lens": torch.tensor([[5], [0], [64]], dtype=torch.int32),
        "block_tables": torch.zeros(3, 2, dtype=torch.int32),
        "max_kv_len": 128,
    }
    return {**given, **changed}


LOGITS_FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a page of 128": (
        {"cache": torch.zeros(4, 128, 1, 132, dtype=torch.uint8)},
        "(4, 128, 1, 132)",
        "64 entries a page exactly",
    ),
    "a page of 32": (
        {"cache": torch.zeros(4, 32, 1, 132, dtype=torch.uint8)},
        "(4, 32, 1, 132)",
        "64 entries",
    ),
    "an FP4 cache": (
        {"cache": torch.zeros(4, 64, 1, 68, dtype=torch.uint8)},
        "(4, 64, 1, 68)",
        "(4, 64, 1, 132)",
    ),
    "varlen rows": (
        {"row_requests": torch.zeros(3, dtype=torch.int32)},
        "row_requests (varlen)",
        "None",
    ),
    "three rows a request": (
        {"q": torch.zeros(1, 3, 32, 128, dtype=E4M3)},
        "next_n) is 3",
        "1 or 2",
    ),
    "lengths that are not contiguous": (
        {"context_lens": torch.zeros(3, 2, dtype=torch.int32)[:, :1]},
        "(2, 1)",
        "contiguous",
    ),
    "packed query scales": (
        {"q_sf": torch.zeros(3, 1, 32, dtype=torch.int32)},
        "q_sf is a tensor",
        "None",
    ),
    "bf16 weights": ({"weights": bf16(3, 32)}, "torch.bfloat16", "float32"),
    "48 heads": ({"q": torch.zeros(3, 1, 48, 128, dtype=E4M3)}, "48", "(32, 64)"),
    "no column": ({"max_kv_len": 0}, "max_kv_len is 0", "positive"),
}


@pytest.mark.parametrize("fault", LOGITS_FAULTS)
def test_a_wrong_logits_argument_is_named_with_value_and_wish(calls: Calls, fault: str) -> None:
    changed, found, wanted = LOGITS_FAULTS[fault]
    with pytest.raises(UnsupportedError) as refused:
        sm90_contracts.fp8_paged_mqa_logits(**paged(**changed))
    assert found in refused.value.found
    assert wanted in refused.value.expected
    assert calls == []


def test_lengths_of_zero_never_reach_the_kernel_that_makes_the_schedule(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    sm90_contracts.fp8_paged_mqa_logits(**paged(context_lens=torch.zeros(3, 1, dtype=torch.int32)))
    schedule = next(args for name, args, _ in calls if name == "get_paged_mqa_logits_metadata")
    assert schedule[0].tolist() == [[1], [1], [1]]
    calls.clear()
    given = paged(
        q=torch.zeros(0, 1, 32, 128, dtype=E4M3),
        weights=torch.zeros(0, 32),
        context_lens=torch.zeros(0, 1, dtype=torch.int32),
        block_tables=torch.zeros(0, 2, dtype=torch.int32),
    )
    assert sm90_contracts.fp8_paged_mqa_logits(**given).shape == (0, 128)
    assert calls == []


def test_prefill_logits_take_ranges_and_refuse_query_scales(calls: Calls) -> None:
    given: dict[str, Any] = {
        "q": torch.zeros(3, 64, 128, dtype=E4M3),
        "kv": (torch.zeros(9, 128, dtype=E4M3), torch.ones(9)),
        "weights": torch.zeros(3, 64),
        "starts": torch.zeros(3, dtype=torch.int32),
        "ends": torch.full((3,), 9, dtype=torch.int32),
        "max_kv_len": 9,
    }
    sm90_contracts.fp8_mqa_logits(**given)
    assert calls[0][0] == "fp8_fp4_mqa_logits"
    assert calls[0][1][0][1] is None
    for name, value, found in [
        ("q_sf", torch.zeros(3, 64, dtype=torch.int32), "q_sf"),
        ("starts", torch.zeros(3, dtype=torch.int64), "starts.dtype"),
        ("ends", torch.zeros(2, dtype=torch.int32), "ends.shape"),
        ("kv", (torch.zeros(9, 128, dtype=E4M3), torch.ones(9, dtype=torch.int32)), "kv[1].dtype"),
    ]:
        with pytest.raises(UnsupportedError) as refused:
            sm90_contracts.fp8_mqa_logits(**{**given, name: value})
        assert found in refused.value.found


def test_a_scale_is_checked_where_it_is_loaded() -> None:
    sm90_contracts.check_gemm_scale("layers.0.wo_b", torch.ones(40, 64), rows=5120, columns=8192)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.wo_b\.shape is \(160, 256\)"):
        sm90_contracts.check_gemm_scale(
            "layers.0.wo_b", torch.ones(160, 256), rows=5120, columns=8192
        )
    packed = torch.zeros(40, 64, dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="packed ue8m0"):
        sm90_contracts.check_gemm_scale("layers.0.wo_b", packed, rows=5120, columns=8192)


def test_without_a_gpu_the_device_is_named_and_without_deep_gemm_the_wheel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DeviceError, match="tensors on cpu"):
        sm90_contracts.fp8_gemm_nt(activations(4, 128), weight(128, 128), bf16(4, 128))
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    with pytest.raises(DeviceError, match=r"10\.0"):
        refusal.deep_gemm_on("fp8_gemm_nt", on_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    with pytest.raises(DependencyError, match="build-vendor --only deep_gemm"):
        refusal.deep_gemm_on("fp8_gemm_nt", on_gpu)
