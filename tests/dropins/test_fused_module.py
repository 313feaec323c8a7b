"""The fused module: real weight permutations, and a composition that equals its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flash_mla.fused_norm_rope_attn_rope_cast import (
    decode,
    permute_q_b_proj,
    permute_wv_proj,
    prefill,
)
from flash_mla.rotation import rotate

from h20_ops import torch_ref
from h20_ops.errors import UnsupportedError
from h20_ops.formats import decode_e4m3, decode_ue8m0
from h20_ops.kv_cache import V41_FP4, V41_FP8
from h20_ops.testing.cases_decode import DecodeCase, Scope, make_decode
from h20_ops.testing.compare import check_close
from h20_ops.testing.seeds import generator_for
from h20_ops.testing.tolerances import tolerance

pytestmark = pytest.mark.torch

HEADS, TOKENS, GROUPS = 16, 5, 2


def random_bytes(shape: tuple[int, ...]) -> torch.Tensor:
    data = torch.randint(0, 127, shape, generator=generator_for(f"bytes {shape}"))
    return data.to(torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.parametrize("granularity", [32, 128])
def test_query_rows_move_to_chunks_of_sixteen_channels(granularity: int) -> None:
    h_q, d_q, rank = 3, 64, 1280
    weight = random_bytes((h_q * d_q, rank))
    words = -(-rank // granularity // 4)
    scales = torch.empty_strided((h_q * d_q, words), (1, h_q * d_q), dtype=torch.int32)
    scales.copy_(torch.arange(h_q * d_q * words).view(-1, words))
    before = weight.view(torch.uint8).clone()
    moved, moved_scales = permute_q_b_proj((weight, scales), h_q, d_q)
    for head in range(h_q):
        for channel in range(d_q):
            new = channel // 16 * 16 * h_q + 16 * head + channel % 16
            old = head * d_q + channel
            assert moved.view(torch.uint8)[new].equal(before[old]), (head, channel)
            assert moved_scales[new].equal(scales[old]), (head, channel)
    assert moved_scales.stride() == scales.stride() and moved.is_contiguous()
    assert weight.view(torch.uint8).equal(before), "the input stays as it was"


def test_output_columns_and_scale_bytes_move_to_chunks_of_heads() -> None:
    groups, n = 2, 8
    weight = random_bytes((groups, n, 4096))
    scale_bytes = torch.randint(0, 255, (groups, n, 128), generator=generator_for("wv"))
    words = scale_bytes.to(torch.uint8).view(torch.int32)
    scales = torch.empty_strided((groups, n, 32), (32 * n, 1, n), dtype=torch.int32)
    scales.copy_(words)
    moved, moved_scales = permute_wv_proj((weight, scales), wv_group_size=8, d_o=512)
    new_bytes = moved_scales.contiguous().view(torch.uint8)
    for head in range(8):
        for chunk in range(16):
            old, new = head * 16 + chunk, chunk * 8 + head
            got = moved.view(torch.uint8)[..., new * 32 : new * 32 + 32]
            assert got.equal(weight.view(torch.uint8)[..., old * 32 : old * 32 + 32])
            assert new_bytes[..., new].equal(scale_bytes[..., old].to(torch.uint8))
    assert moved_scales.stride() == scales.stride()


@pytest.mark.parametrize(
    ("weight", "scales", "message"),
    [
        (torch.zeros(64, 100), torch.zeros(64, 1, dtype=torch.int32), r"weight: e4m3 \(64, rank\)"),
        (random_bytes((64, 1280)), torch.zeros(64, 10), "scales: int32"),
        (random_bytes((64, 1280)), torch.zeros(64, 10, dtype=torch.int32), r"stride\(0\) 1"),
        (
            random_bytes((64, 1280)),
            torch.zeros(5, 64, dtype=torch.int32).t(),
            r"\{32: 10, 128: 3\} expected for rank 1280, got 5",
        ),
    ],
)
def test_a_permutation_refuses_what_it_cannot_move(
    weight: torch.Tensor, scales: torch.Tensor, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        permute_q_b_proj((weight, scales), 1, 64)


def rope_cache(positions: int) -> torch.Tensor:
    angle = torch.arange(positions).unsqueeze(1) * 100_000.0 ** (-torch.arange(32) / 32)
    return torch.cat((angle.cos(), angle.sin()), dim=1).float()


def test_rotation_turns_interleaved_pairs_of_the_last_channels_and_back() -> None:
    x = torch.zeros(1, 1, 512)
    x[0, 0, 10], x[0, 0, 448], x[0, 0, 451] = 5.0, 1.0, 2.0
    cache = rope_cache(4)
    position = torch.tensor([3], dtype=torch.int32)
    turned = rotate(x, position, cache, conjugate=False)
    cos, sin = cache[3, :32], cache[3, 32:]
    assert turned[0, 0, 10] == 5.0
    assert turned[0, 0, 448:450].tolist() == pytest.approx([float(cos[0]), float(sin[0])])
    expected = [-2 * float(sin[1]), 2 * float(cos[1])]
    assert turned[0, 0, 450:452].tolist() == pytest.approx(expected)
    back = rotate(turned, position, cache, conjugate=True)
    assert torch.allclose(back, x, atol=1e-6)


def common(positions: torch.Tensor, cache: torch.Tensor) -> dict[str, Any]:
    return {
        "enable_q_norm": False,
        "rms_norm_eps": 0.0,
        "token_positions": positions,
        "is_rope_neox_style": False,
        "rope_dim": 64,
        "cos_sin_cache": cache,
        "n_wv_group": GROUPS,
        "num_per_channels": 32,
        "use_tma_aligned_col_major_sf": True,
        "round_sf": True,
        "use_packed_ue8m0": True,
    }


def permuted_rows(q: torch.Tensor) -> torch.Tensor:
    """Element (h, d) to (d / 16) * 16 * heads + 16 * h + d % 16, one at a time, rows padded."""
    tokens, heads, width = q.shape
    wide = torch.zeros((tokens, heads * width + 4096), dtype=q.dtype)
    for head in range(heads):
        for first in range(0, width, 16):
            at = first * heads + 16 * head
            wide[:, at : at + 16] = q[:, head, first : first + 16]
    return wide[:, : heads * width].unflatten(1, (heads, width))


def dequantised(out_fp8: torch.Tensor, out_sf: torch.Tensor) -> torch.Tensor:
    """fp32 (tokens, heads, 512) from the fused layout, chunk by chunk."""
    tokens, groups, width = out_fp8.shape
    per_group = width // 512
    values = decode_e4m3(out_fp8)
    scales = decode_ue8m0(out_sf.contiguous().view(torch.uint8))
    out = torch.empty((tokens, groups * per_group, 512))
    for head in range(groups * per_group):
        group, inner = divmod(head, per_group)
        for chunk in range(16):
            at = chunk * per_group + inner
            part = values[:, group, at * 32 : at * 32 + 32] * scales[:, group, at : at + 1]
            out[:, head, chunk * 32 : chunk * 32 + 32] = part
    return out


def expected_from(out: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Turn attention output back, pair by pair, in fp64."""
    turned = out.double().clone()
    cos, sin = cache.double()[positions.long()].unsqueeze(1).split(32, dim=-1)
    even, odd = out.double()[..., 448::2], out.double()[..., 449::2]
    turned[..., 448::2] = even * cos + odd * sin
    turned[..., 449::2] = odd * cos - even * sin
    return turned


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H20_OPS_BACKEND", "twin")


@pytest.fixture
def queries() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = generator_for("fused")
    q = torch.randn((TOKENS, HEADS, 512), generator=rng).to(torch.bfloat16)
    positions = torch.randint(0, 131_072, (TOKENS,), generator=rng, dtype=torch.int32)
    return q, positions, rope_cache(131_072)


@pytest.mark.usefixtures("twin")
def test_prefill_equals_its_steps(queries: tuple[torch.Tensor, ...]) -> None:
    q, positions, cache = queries
    rng = generator_for("fused kv")
    kv = torch.randn((70, 1, 512), generator=rng).to(torch.bfloat16)
    indices = torch.randint(-1, 70, (TOKENS, 1, 24), generator=rng, dtype=torch.int32)
    out_fp8, out_sf, max_logits, lse = prefill(
        **common(positions, cache), q=permuted_rows(q), kv=kv, indices=indices, sm_scale=512**-0.5
    )
    rotated = rotate(q, positions, cache, conjugate=False).to(torch.bfloat16)
    want = torch_ref.sparse_mla_prefill(rotated, kv, indices, sm_scale=512**-0.5)
    expected = expected_from(want[0], positions, cache)
    check_close("out", dequantised(out_fp8, out_sf), expected, tolerance("fused_attn.out"))
    assert max_logits.equal(want[1]) and lse.equal(want[2])
    assert out_fp8.shape == (TOKENS, GROUPS, HEADS // GROUPS * 512)
    assert out_sf.shape == (TOKENS, GROUPS, HEADS // GROUPS * 4)
    assert out_sf.stride() == (1, HEADS // GROUPS * 4 * 8, 8), "tokens innermost, padded to 8"


@pytest.mark.usefixtures("twin")
def test_decode_equals_its_steps_with_a_length_per_query(
    queries: tuple[torch.Tensor, ...],
) -> None:
    q, positions, cache = queries
    scopes = Scope(s_k=60, topk=12, page_size=7), Scope(s_k=60, topk=20, page_size=5)
    made = make_decode(DecodeCase(b=TOKENS, main=scopes[0], extra=scopes[1], heads=HEADS))
    assert made.extra_k_cache is not None and made.extra_indices is not None
    length = torch.tensor([0, 3, 12, 12, 7], dtype=torch.int32)
    out_fp8, out_sf, lse = decode(
        **common(positions, cache),
        q=permuted_rows(q),
        k_cache=made.k_cache,
        indices_in_kvcache=made.indices[:, 0],
        sm_scale=512**-0.5,
        attn_sink=made.attn_sink,
        topk_length=length,
        extra_k_cache=made.extra_k_cache,
        extra_indices_in_kvcache=made.extra_indices[:, 0],
    )
    want, want_lse = torch_ref.sparse_mla_decode(
        rotate(q, positions, cache, conjugate=False).to(torch.bfloat16).unsqueeze(1),
        made.k_cache,
        made.indices,
        sm_scale=512**-0.5,
        layout=V41_FP8,
        attn_sink=made.attn_sink,
        topk_length=length,
        extra_k_cache=made.extra_k_cache,
        extra_layout=V41_FP4,
        extra_indices=made.extra_indices,
    )
    expected = expected_from(want[:, 0], positions, cache)
    check_close("out", dequantised(out_fp8, out_sf), expected, tolerance("fused_attn.out"))
    assert lse.equal(want_lse[..., 0])


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"enable_q_norm": True}, UnsupportedError, "enable_q_norm=True"),
        ({"is_rope_neox_style": True}, AssertionError, "interleaved"),
        ({"rope_dim": 32}, AssertionError, "rope_dim: 64 expected, got 32"),
        ({"num_per_channels": 128}, AssertionError, "num_per_channels: 32 expected, got 128"),
        ({"round_sf": False}, AssertionError, "three scale flags"),
    ],
)
def test_what_upstream_fixes_is_fixed_here(
    queries: tuple[torch.Tensor, ...], change: dict[str, Any], error: type[Exception], message: str
) -> None:
    q, positions, cache = queries
    kv = torch.zeros((3, 1, 512), dtype=torch.bfloat16)
    indices = torch.zeros((TOKENS, 1, 2), dtype=torch.int32)
    with pytest.raises(error, match=message):
        prefill(**(common(positions, cache) | change), q=q, kv=kv, indices=indices, sm_scale=1.0)
