"""The flash_mla drop-in on the GPU, called as DeepInfer calls it, against the twins."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from h20_ops.kv_cache import V41_FP8
from h20_ops.testing.cases_decode import DecodeCase, DecodeInputs, Scope, make_decode
from h20_ops.testing.cases_prefill import PrefillCase, make_prefill
from h20_ops.testing.compare import check_bitwise, check_close
from h20_ops.testing.tolerances import tolerance
from h20_ops.torch_ref import sparse_mla_decode, sparse_mla_prefill

pytestmark = pytest.mark.gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dropins" / "flash_mla"))
import flash_mla  # noqa: E402
from flash_mla import fused_norm_rope_attn_rope_cast as fused  # noqa: E402
from flash_mla.flash_mla_interface import FlashMLASchedMeta  # noqa: E402

RING = Scope(s_k=134, topk=128, page_size=134, page_stride=134 * 528 + 1056)
DRAFT = Scope(s_k=133, topk=192, page_size=134, page_stride=134 * 528 + 1056)
RATIO_1 = Scope(s_k=1500, topk=512, page_size=128, page_stride=114_048)
RATIO_2 = Scope(s_k=1500, topk=512, page_size=64, page_stride=114_048)

ENGINE_CASES = [
    DecodeCase(b=8, main=RING),
    DecodeCase(b=8, main=RING, extra=RATIO_2),
    DecodeCase(b=64, main=RING, extra=RATIO_1),
    DecodeCase(b=20, main=DRAFT),
    DecodeCase(b=8, main=RING, extra=RATIO_1, extra_layout=V41_FP8),
    DecodeCase(b=8, main=RING, extra=RATIO_2, heads=128),
]


@pytest.fixture(autouse=True)
def kernels_and_exact_twins() -> Iterator[None]:
    assert "H20_OPS_BACKEND" not in os.environ, "this test is about the kernels"
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.cuda.empty_cache()


def engine_call(inputs: DecodeInputs, meta: FlashMLASchedMeta, **change: Any) -> Any:
    return flash_mla.flash_mla_with_kvcache(
        **{
            "q": inputs.q,
            "k_cache": inputs.k_cache,
            "block_table": None,
            "cache_seqlens": None,
            "head_dim_v": 512,
            "tile_scheduler_metadata": meta,
            "softmax_scale": inputs.sm_scale,
            "causal": False,
            "is_fp8_kvcache": True,
            "indices": inputs.indices,
            "attn_sink": inputs.attn_sink,
            "extra_k_cache": inputs.extra_k_cache,
            "extra_indices_in_kvcache": inputs.extra_indices,
            "topk_length": None,
            "extra_topk_length": None,
            "enable_batch_invariant": False,
            **change,
        }
    )


@pytest.mark.parametrize("case", ENGINE_CASES, ids=lambda case: case.id)
def test_the_engines_decode_call_agrees_with_the_twin(case: DecodeCase) -> None:
    inputs = make_decode(case, "cuda")
    out, lse = engine_call(inputs, FlashMLASchedMeta())
    want = sparse_mla_decode(inputs.q, inputs.k_cache, inputs.indices, **inputs.kwargs())
    check_close("out", out, want[0], tolerance("mla_decode.out"))
    check_close("lse", lse, want[1], tolerance("mla_decode.lse"))
    assert lse.squeeze(-1).shape == (case.b, case.heads)
    assert out.is_contiguous() and out.squeeze(1).data_ptr() == out.data_ptr()


@pytest.mark.parametrize("topk", [128, 640])
def test_the_engines_prefill_call_agrees_with_the_twin(topk: int) -> None:
    case = PrefillCase(s_q=300, s_kv=900, topk=topk, strided=True)
    inputs = make_prefill(case, "cuda")
    got = flash_mla.flash_mla_sparse_fwd(
        inputs.q, inputs.kv, inputs.indices, sm_scale=inputs.sm_scale, attn_sink=inputs.attn_sink
    )
    want = sparse_mla_prefill(
        inputs.q, inputs.kv, inputs.indices, sm_scale=inputs.sm_scale, attn_sink=inputs.attn_sink
    )
    for name, x, y in zip(("out", "max_logits", "lse"), got, want, strict=True):
        check_close(name, x, y, tolerance(f"mla_prefill.{name}"))


def test_one_metadata_object_serves_every_layer_and_a_captured_graph() -> None:
    inputs = make_decode(DecodeCase(b=8, main=RING, extra=RATIO_2), "cuda")
    eager = engine_call(inputs, FlashMLASchedMeta())[0].clone()
    meta = FlashMLASchedMeta()  # recreated before capture, as the engine does
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = engine_call(inputs, meta)[0]
        second = engine_call(inputs, meta)[0]
    for _ in range(3):
        first.zero_()
        graph.replay()
    torch.cuda.synchronize()
    check_bitwise("first layer", first, eager)
    check_bitwise("second layer", second, eager)


def test_batch_invariant_rows_keep_their_bits_in_another_batch() -> None:
    inputs = make_decode(DecodeCase(b=64, main=RING, extra=RATIO_1), "cuda")
    whole = engine_call(inputs, FlashMLASchedMeta(), enable_batch_invariant=True)[0]
    assert inputs.extra_indices is not None
    alone = engine_call(
        inputs,
        FlashMLASchedMeta(),
        enable_batch_invariant=True,
        q=inputs.q[5:6],
        indices=inputs.indices[5:6],
        extra_indices_in_kvcache=inputs.extra_indices[5:6],
    )[0]
    check_bitwise("row 5", alone, whole[5:6])


def test_the_fused_composition_agrees_with_its_steps_on_the_twins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = make_prefill(PrefillCase(s_q=64, s_kv=700, topk=256), "cuda")
    angle = torch.arange(4096, device="cuda").unsqueeze(1) * 1e5 ** (
        -torch.arange(32, device="cuda") / 32
    )
    arguments: dict[str, Any] = {
        "enable_q_norm": False,
        "rms_norm_eps": 0.0,
        "token_positions": torch.arange(64, device="cuda", dtype=torch.int32) * 61,
        "is_rope_neox_style": False,
        "rope_dim": 64,
        "cos_sin_cache": torch.cat((angle.cos(), angle.sin()), dim=1).float(),
        "n_wv_group": 8,
        "num_per_channels": 32,
        "use_tma_aligned_col_major_sf": True,
        "round_sf": True,
        "use_packed_ue8m0": True,
        "q": inputs.q,
        "kv": inputs.kv,
        "indices": inputs.indices,
        "sm_scale": inputs.sm_scale,
        "attn_sink": inputs.attn_sink,
    }
    values, scales, max_logits, lse = fused.prefill(**arguments)
    monkeypatch.setenv("H20_OPS_BACKEND", "twin")
    want_values, want_scales, want_max, want_lse = fused.prefill(**arguments)
    got, want = (_dequantised(v, s) for v, s in ((values, scales), (want_values, want_scales)))
    check_close("out", got, want, tolerance("fused_attn.out"))
    check_close("max_logits", max_logits, want_max, tolerance("fused_attn.max_logits"))
    check_close("lse", lse, want_lse, tolerance("fused_attn.lse"))


def _dequantised(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    exponents = scales.contiguous().view(torch.uint8).to(torch.int32) - 127
    chunks = values.float().unflatten(-1, (-1, 32))
    return (chunks * torch.exp2(exponents.float()).unsqueeze(-1)).flatten(-2)
