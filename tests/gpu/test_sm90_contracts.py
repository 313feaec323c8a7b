"""What the contracts let through is what DeepGEMM's SM90 kernels compute; needs the deep_gemm wheel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from h20_ops import sm90_contracts
from h20_ops.errors import UnsupportedError
from h20_ops.testing.compare import check_bitwise, normalised_difference
from h20_ops.testing.seeds import generator_for

pytestmark = pytest.mark.gpu

E4M3 = torch.float8_e4m3fn
Scaled = tuple[torch.Tensor, torch.Tensor]
# bf16 results of fp8 products against fp64 sums; the tensor cores' partial sums keep fewer bits.
BF16_OUT = 2e-5


def codes(*shape: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=rng, device="cuda").to(E4M3)


def activations(rows: int, k: int, *, rng: torch.Generator) -> Scaled:
    """e4m3 (rows, k) and its scales (rows, k / 128), columns outermost, as TMA reads them."""
    padded = -(-rows // 4) * 4
    scales = torch.rand((k // 128, padded), generator=rng, device="cuda").add_(0.1).t()[:rows]
    return codes(rows, k, rng=rng), scales


def weight(*shape: int, rng: torch.Generator) -> Scaled:
    *lead, n, k = shape
    scale_shape = (*lead, -(-n // 128), k // 128)
    exponents = torch.randint(-4, 4, scale_shape, generator=rng, device="cuda")
    return codes(*shape, rng=rng), torch.exp2(exponents.float())


def exact(x: Scaled, block_rows: int) -> torch.Tensor:
    """fp64 values of e4m3 under scales of (block_rows, 128)."""
    per_value = x[1].double().repeat_interleave(128, -1)
    if block_rows > 1:
        per_value = per_value.repeat_interleave(block_rows, -2)[..., : x[0].shape[-2], :]
    return x[0].double() * per_value


def close(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    difference = normalised_difference(got, want)
    assert difference < BF16_OUT, f"{name}: normalised difference {difference:.2e}"


def check_captured(call: Callable[[], None], out: torch.Tensor) -> None:
    """The same bits from a captured graph; the eager call before has compiled the kernel."""
    want = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    check_bitwise("replayed", out, want)


@pytest.mark.parametrize("m", [5, 130])
def test_dense_products_and_their_capture(m: int) -> None:
    rng = generator_for(f"gemm {m}", "cuda")
    a, b = activations(m, 512, rng=rng), weight(384, 512, rng=rng)
    assert a[1].stride() == (1, -(-m // 4) * 4)
    d = torch.full((m, 384), torch.nan, dtype=torch.bfloat16, device="cuda")

    def call() -> None:
        sm90_contracts.fp8_gemm_nt(a, b, d)

    torch.cuda.synchronize()
    call()
    close("d", d, exact(a, 1) @ exact(b, 128).T)
    check_captured(call, d)


def test_a_result_with_padded_rows_is_written_between_its_gaps() -> None:
    rng = generator_for("padded", "cuda")
    a, b = activations(5, 512, rng=rng), weight(384, 512, rng=rng)
    wide = torch.full((5, 400), 7.0, dtype=torch.bfloat16, device="cuda")
    sm90_contracts.fp8_gemm_nt(a, b, wide[:, :384])
    close("d", wide[:, :384], exact(a, 1) @ exact(b, 128).T)
    assert bool((wide[:, 384:] == 7.0).all())


def test_experts_multiply_their_rows_and_no_others() -> None:
    rng = generator_for("grouped", "cuda")
    counts = [130, 0, 1, 128]
    starts: list[int] = []
    ends: list[int] = []
    for count in counts:
        starts.append(-(-ends[-1] // 128) * 128 if ends else 0)
        ends.append(starts[-1] + count)
    rows = -(-ends[-1] // 128) * 128
    a, b = activations(rows, 512, rng=rng), weight(4, 256, 512, rng=rng)
    d = torch.zeros((rows, 256), dtype=torch.bfloat16, device="cuda")
    group_ends = torch.tensor(ends, dtype=torch.int32, device="cuda")

    def call() -> None:
        sm90_contracts.m_grouped_fp8_gemm_nt_contiguous(a, b, d, group_ends)

    call()
    left, right = exact(a, 1), exact(b, 128)
    for expert, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end > start:
            close(f"expert {expert}", d[start:end], left[start:end] @ right[expert].T)
    used = torch.cat([d[s:e] for s, e in zip(starts, ends, strict=True)])
    want = used.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    d.zero_()
    graph.replay()
    again = torch.cat([d[s:e] for s, e in zip(starts, ends, strict=True)])
    check_bitwise("replayed", again, want)


@pytest.mark.parametrize("used", [8, 16, 32, 64])
def test_the_masked_form_multiplies_the_first_rows_of_each_expert(used: int) -> None:
    m = 128
    rng = generator_for(f"masked {used}", "cuda")
    values = codes(3, m, 512, rng=rng)
    scales = torch.rand((3, 4, m), generator=rng, device="cuda").add_(0.1).transpose(1, 2)
    b = weight(3, 256, 512, rng=rng)
    d = torch.zeros((3, m, 256), dtype=torch.bfloat16, device="cuda")
    counts = (used, 0, used // 3 + 1)
    num_rows = torch.tensor(counts, dtype=torch.int32, device="cuda")
    sm90_contracts.m_grouped_fp8_gemm_nt_masked((values, scales), b, d, num_rows, expected_m=used)
    left, right = exact((values, scales), 1), exact(b, 128)
    for expert, count in enumerate(counts):
        if count:
            close(f"expert {expert}", d[expert, :count], (left[expert] @ right[expert].T)[:count])


@pytest.mark.parametrize("tokens", [3, 64])
def test_grouped_projections_take_the_engines_strides(tokens: int) -> None:
    groups, r, n = 8, 512, 256
    rng = generator_for(f"einsum {tokens}", "cuda")
    flat_values, flat_scales = activations(tokens, groups * r, rng=rng)
    a = flat_values.view(tokens, groups, r), flat_scales.view(tokens, groups, r // 128)
    b = weight(groups, n, r, rng=rng)
    d = torch.full((tokens, groups, n), torch.nan, dtype=torch.bfloat16, device="cuda")

    def call() -> None:
        sm90_contracts.fp8_einsum_bhr_hdr_bhd(a, b, d)

    call()
    close("d", d, torch.einsum("tgr,gnr->tgn", exact(a, 1), exact(b, 128)))
    check_captured(call, d)


def fp8_logits(q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """fp64 (rows, keys): the sum over heads of weights times what is positive of q k."""
    products = torch.einsum("rhd,kd->rhk", q.double(), k).relu()
    return torch.einsum("rhk,rh->rk", products, weights.double())


def test_deep_gemms_own_prefill_logits() -> None:
    rng = generator_for("mqa prefill", "cuda")
    q, k = codes(70, 32, 128, rng=rng), codes(600, 128, rng=rng)
    k_scale = torch.rand(600, generator=rng, device="cuda").add_(0.1)
    weights = torch.randn((70, 32), generator=rng, device="cuda")
    starts = torch.arange(70, dtype=torch.int32, device="cuda") * 2
    ends = starts + 400
    logits = sm90_contracts.fp8_mqa_logits(q, (k, k_scale), weights, starts, ends, max_kv_len=400)
    want = fp8_logits(q, k.double() * k_scale.double().unsqueeze(1), weights)
    columns = starts.long().unsqueeze(1) + torch.arange(400, device="cuda")
    close("logits", logits[:, :400], want.gather(1, columns))


@pytest.mark.parametrize("next_n", [1, 2])
def test_deep_gemms_own_paged_logits_with_a_length_of_zero(next_n: int) -> None:
    rng = generator_for(f"mqa paged {next_n}", "cuda")
    batch, pages = 3, 16
    keys = codes(pages, 64, 128, rng=rng)
    scales = torch.rand((pages, 64), generator=rng, device="cuda").add_(0.1)
    cache = torch.cat(
        [keys.view(torch.uint8).flatten(1), scales.view(torch.uint8).flatten(1)], dim=1
    ).view(pages, 64, 1, 132)
    q = codes(batch, next_n, 32, 128, rng=rng)
    weights = torch.randn((batch * next_n, 32), generator=rng, device="cuda")
    longest = torch.tensor([200, 0, 64], dtype=torch.int32, device="cuda")
    lens = (longest.unsqueeze(1) - next_n + 1 + torch.arange(next_n, device="cuda")).clamp_min(0)
    lens = lens.to(torch.int32).contiguous()
    tables = torch.randperm(pages, generator=rng, device="cuda")[: 4 * batch].view(batch, 4)
    tables = tables.to(torch.int32)
    logits = sm90_contracts.fp8_paged_mqa_logits(q, cache, weights, lens, tables, max_kv_len=256)
    exact_keys = keys.double() * scales.double().unsqueeze(-1)
    for row in range(batch):
        gathered = exact_keys[tables[row].long()].flatten(0, 1)
        want = fp8_logits(q[row], gathered, weights.view(batch, next_n, 32)[row])
        for step in range(next_n):
            length = int(lens[row, step])
            if length:
                got = logits[row * next_n + step, :length]
                close(f"row {row}, {step}", got, want[step, :length])


def test_packed_exponents_never_reach_a_kernel() -> None:
    rng = generator_for("packed", "cuda")
    values, _ = activations(4, 512, rng=rng)
    packed = torch.full((4, 4), 0x77777777, dtype=torch.int32, device="cuda")
    d = torch.full((4, 384), 5.0, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(UnsupportedError, match="packed ue8m0"):
        sm90_contracts.fp8_gemm_nt((values, packed), weight(384, 512, rng=rng), d)
    assert bool((d == 5.0).all())


def test_a_scale_of_another_block_would_be_seen() -> None:
    rng = generator_for("sabotage", "cuda")
    a, b = activations(5, 512, rng=rng), weight(384, 512, rng=rng)
    d = torch.zeros((5, 384), dtype=torch.bfloat16, device="cuda")
    moved = (b[0], b[1].roll(1, dims=0).contiguous())
    sm90_contracts.fp8_gemm_nt(a, moved, d)
    with pytest.raises(AssertionError, match="normalised difference"):
        close("d", d, exact(a, 1) @ exact(b, 128).T)
