"""Patched products on a CPU: right tensors, right recipes, and packed scales refused before the call."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patches.edits.patched_code import (
    DeepGemm,
    cast_rows,
    dequantised,
    function,
    platform,
    with_scale,
)

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

LINEAR = "deepinfer/model_executor/layers/linear.py"
V4 = "deepinfer/model_executor/models/v4_modules"
CAST = {
    "fmt": "e4m3",
    "num_per_channels": 128,
    "round_sf": True,
    "use_packed_ue8m0": False,
    "use_tma_aligned_col_major_sf": True,
}


@pytest.fixture
def deep_gemm(monkeypatch: pytest.MonkeyPatch) -> DeepGemm:
    stand_in = DeepGemm()
    monkeypatch.setattr("h20_ops.sm90_contracts.gemm.deep_gemm_on", lambda *_: stand_in)
    return stand_in


def weight(rows: int, columns: int, seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.exp2(torch.randint(-4, 3, (rows // 128, columns // 128), generator=generator))
    return values, scales.float()


def rows(count: int, columns: int, seed: int = 5) -> Any:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()


def packed_like(scales: Any) -> Any:
    """Give packed exponents of the same shape and size: what must never reach a kernel."""
    return torch.full(scales.shape, 0x77777777, dtype=torch.int32)


def test_scales_span_128_columns_and_are_not_packed_on_hopper_only(patched: Path) -> None:
    for is_sm90, width in ((True, 128), (False, 32)):
        names = {"PLATFORM": platform(is_sm90=is_sm90)}
        granularity = function(patched, LINEAR, "get_fp8_casting_granularity", **names)
        assert granularity() == width
        given = function(
            patched, LINEAR, "get_fp8_cast_params", get_fp8_casting_granularity=granularity, **names
        )()
        assert given == {**CAST, "num_per_channels": width, "use_packed_ue8m0": not is_sm90}


def linear(patched: Path, values: Any, scales: Any) -> tuple[Any, Any]:
    """Give the patched apply_weight_fp8 and a layer with the weight."""
    layer = SimpleNamespace(
        output_size=values.shape[0],
        weight=with_scale(values, scales),
        _allocate_output=lambda shape, dtype, device: torch.empty(shape, dtype=dtype),
    )
    apply = function(
        patched,
        LINEAR,
        "ReplicatedLinear.apply_weight_fp8",
        PLATFORM=platform(),
        torch=torch,
        tile_kernels=SimpleNamespace(quant=SimpleNamespace(per_token_cast=cast_rows)),
        get_fp8_cast_params=lambda: CAST,
    )
    return apply, layer


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_linear_multiplies_with_the_sm90_recipe(
    patched: Path, deep_gemm: DeepGemm, count: int
) -> None:
    values, scales = weight(256, 384, 1)
    apply, layer = linear(patched, values, scales)
    x = rows(count, 384)
    out = apply(layer, x)
    want = dequantised(*cast_rows(x, **CAST), (1, 128)) @ dequantised(values, scales, (128, 128)).T
    assert torch.equal(out, want.bfloat16())
    assert deep_gemm.calls == ([("gemm", {"recipe": (1, 128, 128)})] if count else [])
    assert torch.equal(apply(layer, cast_rows(x, **CAST)), out)


def test_packed_scales_never_reach_the_linears_kernel(patched: Path, deep_gemm: DeepGemm) -> None:
    from h20_ops.errors import UnsupportedError

    values, scales = weight(256, 384, 2)
    apply, layer = linear(patched, values, packed_like(scales))
    with pytest.raises(UnsupportedError, match="int32"):
        apply(layer, rows(4, 384))
    apply, layer = linear(patched, values, scales)
    fp8, sf = cast_rows(rows(4, 384), **CAST)
    with pytest.raises(UnsupportedError, match="int32"):
        apply(layer, (fp8, packed_like(sf)))
    assert deep_gemm.calls == []


def test_a_weight_that_was_not_requantised_is_refused_when_the_layer_is_made(
    patched: Path,
) -> None:
    from h20_ops.errors import UnsupportedError

    class Stop(Exception):
        pass

    def reached(*_: Any) -> None:
        raise Stop

    init = function(
        patched,
        LINEAR,
        "ReplicatedLinear.__init__",
        PLATFORM=platform(),
        torch=torch,
        super=lambda: SimpleNamespace(__init__=reached),
    )
    values, scales = weight(256, 384, 3)
    with pytest.raises(Stop):
        init(None, 384, 256, weight=with_scale(values, scales))
    wide = torch.ones(8, 12)  # as the checkpoint has them: 32x32
    for wrong in (packed_like(scales), wide):
        with pytest.raises(UnsupportedError, match="sf"):
            init(None, 384, 256, weight=with_scale(values, wrong))


def grouped(patched: Path, *, is_sm90: bool = True, deep_gemm: Any = None) -> Any:
    return function(
        patched,
        f"{V4}/mlp.py",
        "_grouped_gemm",
        PLATFORM=platform(is_sm90=is_sm90),
        deep_gemm=deep_gemm,
        get_fp8_casting_granularity=lambda: 128 if is_sm90 else 32,
    )


def test_dispatch_expert_products_and_combine_give_the_mixture(
    patched: Path, deep_gemm: DeepGemm
) -> None:
    from h20_ops.local_buffers import LocalEPBuffer

    experts = [weight(128, 256, seed) for seed in range(4)]
    values = torch.stack([each[0].view(torch.uint8) for each in experts]).view(torch.float8_e4m3fn)
    scales = torch.stack([each[1] for each in experts])
    x = rows(7, 256)
    chosen = torch.tensor([[0, 2], [1, 3], [3, 0], [2, -1], [0, 1], [1, 2], [3, 2]])
    router = torch.rand(7, 2, generator=torch.Generator().manual_seed(1))
    buffer = LocalEPBuffer(group=SimpleNamespace(size=lambda: 1), num_topk=2)
    received, _, _, handle = buffer.dispatch(
        x=cast_rows(x, **CAST), topk_idx=chosen, topk_weights=router, num_experts=4
    ).current_stream_wait()
    out = torch.zeros(received[0].shape[0], 128, dtype=torch.bfloat16)
    ends = handle.psum_num_recv_tokens_per_expert
    grouped(patched)(received, (values, scales), out, ends, None, True, True)
    combined, _ = buffer.combine(x=out, handle=handle).current_stream_wait()
    left = dequantised(*cast_rows(x, **CAST), (1, 128))
    want = torch.zeros(7, 128, dtype=torch.float64)
    for token in range(7):
        for expert in chosen[token].tolist():
            if expert >= 0:
                want[token] += (
                    left[token] @ dequantised(experts[expert][0], experts[expert][1], (128, 128)).T
                ).bfloat16()
    assert torch.allclose(combined.double(), want, rtol=2e-2, atol=2e-2)
    name, keywords = deep_gemm.calls[0]
    assert name == "grouped"
    assert (keywords["recipe_a"], keywords["recipe_b"]) == ((1, 128), (128, 128))
    assert keywords["use_psum_layout"] is True


def test_packed_or_wrongly_shaped_expert_scales_are_refused(
    patched: Path, deep_gemm: DeepGemm
) -> None:
    from h20_ops.errors import UnsupportedError

    values = torch.zeros(2, 128, 256).to(torch.float8_e4m3fn)
    activations = cast_rows(rows(128, 256), **CAST)
    ends = torch.tensor([3, 130], dtype=torch.int32)
    out = torch.empty(128, 128, dtype=torch.bfloat16)
    for wrong in (packed_like(torch.ones(2, 1, 2)), torch.ones(2, 128, 2)):
        with pytest.raises(UnsupportedError, match="b"):
            grouped(patched)(activations, (values, wrong), out, ends, None, True, True)
    assert deep_gemm.calls == []


def test_other_gpus_keep_upstreams_grouped_call(patched: Path) -> None:
    stand_in = SimpleNamespace(calls=[])
    stand_in.m_grouped_fp8_fp4_gemm_nt_contiguous = lambda *a, **k: stand_in.calls.append(k)
    grouped(patched, is_sm90=False, deep_gemm=stand_in)(1, 2, 3, 4, None, True, True)
    assert stand_in.calls[0]["recipe_b"] == (1, 32)


def test_attention_output_is_rotated_back_once_and_projected(
    patched: Path, deep_gemm: DeepGemm
) -> None:
    tokens, heads, groups, low = 5, 4, 2, 128
    values, scales = zip(*(weight(low, 2 * 512, seed) for seed in range(groups)), strict=True)
    stacked = torch.stack([v.view(torch.uint8) for v in values]).view(torch.float8_e4m3fn)
    rotations: list[bool] = []

    def rotate(positions: Any, part: Any, *, conjugate: bool) -> None:
        assert part.shape == (tokens, heads, 64)
        rotations.append(conjugate)
        part.neg_()

    context = rows(tokens, heads * 512).view(tokens, heads, 512)
    before = context.clone()
    layer = SimpleNamespace(
        use_fused_norm_rope_attn_rope_cast=False,
        rotary_emb=rotate,
        qk_rope_head_dim=64,
        n_wv_group=groups,
        wv_group_dim=2 * 512,
        o_head_dim=low,
        wv_weight=with_scale(stacked, torch.stack(scales)),
        einsum_out_clamp_value=None,
        out_proj=lambda x: x,
    )
    project = function(
        patched,
        f"{V4}/attn.py",
        "V4AttentionBase._wv_and_o_proj",
        PLATFORM=platform(),
        torch=torch,
        tile_kernels=SimpleNamespace(quant=SimpleNamespace(per_token_cast=cast_rows)),
        get_fp8_cast_params=lambda: CAST,
        get_fp8_casting_granularity=lambda: 128,
    )
    out = project(layer, context, torch.arange(tokens))
    assert rotations == [True]
    before[..., -64:] = -before[..., -64:]
    left = dequantised(*cast_rows(before.view(tokens, -1), **CAST), (1, 128))
    for group in range(groups):
        part = left[:, group * 1024 : (group + 1) * 1024]
        want = part @ dequantised(values[group], scales[group], (128, 128)).T
        assert torch.equal(out[:, group * low : (group + 1) * low], want.bfloat16())
    assert deep_gemm.calls == [("bhr,hdr->bhd", {"recipe": (1, 128, 128)})]
