"""One-rank buffers on the GPU: the CPU's results, inside captured graphs, without a look at the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h20_ops.local_buffers import ExpertRows, LocalEngramBuffer, LocalEPBuffer
from h20_ops.local_buffers.expert import worst_case_rows
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.seeds import generator_for

pytestmark = pytest.mark.gpu

ONE = SimpleNamespace(size=lambda: 1)
HIDDEN, EXPERTS, TOPK = 5120, 32, 6


@contextmanager
def no_sync() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def routed(tokens: int, dead: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """On the CPU: distinct experts of each token, some -1, and their weights."""
    rng = generator_for(f"routes {tokens} {dead}")
    topk_idx = torch.rand((tokens, EXPERTS), generator=rng).topk(TOPK, dim=1).indices
    topk_idx[torch.rand((tokens, TOPK), generator=rng) < dead] = -1
    return topk_idx, torch.rand((tokens, TOPK), generator=rng)


def fp8_tokens(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """On the CPU: e4m3 rows without NaN and their scales, rows outermost in strides."""
    rng = generator_for(f"fp8 rows {tokens}")
    codes = torch.randint(0, 0x7F, (tokens, HIDDEN), dtype=torch.uint8, generator=rng)
    scales = torch.rand((HIDDEN // 128, -(-tokens // 4) * 4), generator=rng).t()[:tokens]
    return codes.view(torch.float8_e4m3fn), scales


def dispatch(x: Any, topk_idx: torch.Tensor, weights: torch.Tensor, **more: Any) -> Any:
    made = LocalEPBuffer(group=ONE, num_topk=TOPK)
    call = dict(x=x, topk_idx=topk_idx, topk_weights=weights, num_experts=EXPERTS, **more)
    return made.dispatch(expert_alignment=128, **call).current_stream_wait()


def combine(x: torch.Tensor, handle: ExpertRows, bias: torch.Tensor | None) -> torch.Tensor:
    made = LocalEPBuffer(group=ONE, num_topk=TOPK)
    out, none = made.combine(x=x, handle=handle, bias=bias).current_stream_wait()
    assert none is None
    return out


def cuda(x: Any) -> Any:
    return tuple(t.cuda() for t in x) if isinstance(x, tuple) else x.cuda()


def check_same_rows(ours: Any, want: Any, topk_idx: torch.Tensor) -> None:
    """All that a caller may read: rows of tokens, weights of all rows, ends and the way back."""
    (values, scales), _, weights, handle = ours
    (want_values, want_scales), _, want_weights, want_handle = want
    check_bitwise("row_of", handle.row_of.cpu(), want_handle.row_of)
    check_bitwise(
        "ends",
        handle.psum_num_recv_tokens_per_expert.cpu(),
        want_handle.psum_num_recv_tokens_per_expert,
    )
    check_bitwise("weights", weights.cpu(), want_weights)
    used = want_handle.row_of[topk_idx >= 0]
    check_bitwise(
        "values", values.cpu().view(torch.uint8)[used], want_values.view(torch.uint8)[used]
    )
    check_bitwise("scales", scales.cpu()[used], want_scales[used])
    assert scales.stride() == (1, -(-values.shape[0] // 4) * 4)
    assert bool(scales.isfinite().all()), "scales of rows without a token must be finite"
    assert not bool(values.float().isnan().any())


@pytest.mark.parametrize("tokens", [1, 7, 64, 130, 2049])
@pytest.mark.parametrize("dead", [0.0, 0.2, 1.0])
def test_dispatch_gives_the_rows_of_the_cpu_without_a_sync(tokens: int, dead: float) -> None:
    topk_idx, weights = routed(tokens, dead)
    x = fp8_tokens(tokens)
    stats = torch.ones(EXPERTS, dtype=torch.int32, device="cuda")
    named: Any = {"cumulative_local_expert_recv_stats": stats}
    on_gpu = cuda(x), topk_idx.cuda(), weights.cuda()
    dispatch(*on_gpu)
    with no_sync():
        ours = dispatch(*on_gpu, **named)
    check_same_rows(ours, dispatch(x, topk_idx, weights), topk_idx)
    counts = torch.bincount(topk_idx[topk_idx >= 0], minlength=EXPERTS)
    assert stats.tolist() == (counts + 1).tolist()


@pytest.mark.parametrize("tokens", [1, 64, 2049])
@pytest.mark.parametrize("with_bias", [True, False])
def test_combine_gives_the_sums_of_the_cpu_without_a_sync(tokens: int, with_bias: bool) -> None:
    topk_idx, weights = routed(tokens)
    *_, handle = dispatch(cuda(fp8_tokens(tokens)), topk_idx.cuda(), weights.cuda())
    rows = worst_case_rows(tokens, TOPK, EXPERTS, 128)
    rng = generator_for(f"outputs {tokens}", "cuda")
    outputs = torch.randn((rows, HIDDEN), generator=rng, device="cuda").bfloat16()
    unused = torch.ones(rows, dtype=torch.bool, device="cuda")
    unused[handle.row_of[handle.row_of >= 0]] = False
    outputs[unused] = torch.nan
    bias = torch.randn((tokens, HIDDEN), generator=rng, device="cuda").bfloat16()
    given = bias if with_bias else None
    combine(outputs, handle, given)
    with no_sync():
        ours = combine(outputs, handle, given)
    on_cpu = ExpertRows(
        psum_num_recv_tokens_per_expert=handle.psum_num_recv_tokens_per_expert.cpu(),
        row_of=handle.row_of.cpu(),
    )
    want = combine(outputs.cpu(), on_cpu, None if given is None else given.cpu())
    check_bitwise("sums", ours.cpu(), want)


def test_a_layer_of_experts_runs_inside_a_captured_graph() -> None:
    topk_idx, weights = (t.cuda() for t in routed(64))
    x = cuda(fp8_tokens(64))
    bias = torch.ones((64, HIDDEN), device="cuda").bfloat16()

    def layer() -> tuple[Any, torch.Tensor]:
        received = dispatch(x, topk_idx, weights)
        (values, _), _, row_weights, handle = received
        outputs = (values.to(torch.bfloat16) * row_weights.unsqueeze(1)).to(torch.bfloat16)
        return received, combine(outputs, handle, bias)

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        received, out = layer()
    other_idx, other_weights = routed(64, 0.5)
    topk_idx.copy_(other_idx)
    weights.copy_(other_weights)
    for _ in range(2):
        graph.replay()
    want = dispatch(fp8_tokens(64), other_idx, other_weights)
    check_same_rows(received, want, other_idx)
    again, sums = layer()
    check_bitwise("sums", out, sums)
    assert again[3].row_of.shape == (64, TOPK)


def test_rows_of_bf16_and_no_row_at_all() -> None:
    topk_idx, weights = (t.cuda() for t in routed(33))
    x = torch.randn((33, HIDDEN), device="cuda").bfloat16()
    rows, _, _, handle = dispatch(x, topk_idx, weights)
    taken = handle.row_of >= 0
    tokens = torch.arange(33, device="cuda").unsqueeze(1).expand_as(taken)
    check_bitwise("rows", rows[handle.row_of[taken]], x[tokens[taken]])
    none = torch.empty((0, TOPK), dtype=torch.int64, device="cuda")
    empty, _, _, handle = dispatch(x[:0], none, none.float())
    assert empty.shape == (0, HIDDEN)
    assert handle.psum_num_recv_tokens_per_expert.tolist() == [0] * EXPERTS
    assert combine(empty, handle, None).shape == (0, HIDDEN)


def engram(rows: list[int], width: int, entries: int) -> tuple[LocalEngramBuffer, list[Any]]:
    """A buffer with e4m3 tables on the GPU, and the tables as bf16."""
    rng = generator_for("engram", "cuda")
    made = LocalEngramBuffer(group=ONE)
    made.set_config(rows, width, 4096, entries, torch.float8_e4m3fn, width // 128)
    tables, packed, exact = [], [], []
    for count in rows:
        codes = torch.randint(
            0, 0x7F, (count, width), dtype=torch.uint8, generator=rng, device="cuda"
        )
        exponents = torch.randint(100, 140, (count, width // 32), generator=rng, device="cuda")
        tables.append(codes.view(torch.float8_e4m3fn))
        packed.append(exponents.to(torch.uint8).view(torch.int32))
        scales = torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
        exact.append((codes.view(torch.float8_e4m3fn).float() * scales).bfloat16())
    made.write(tables, sfs=packed)
    return made, exact


def test_engram_hooks_give_exact_rows_without_a_sync_and_in_a_graph() -> None:
    made, exact = engram([5000, 7000], 256, 16)
    rng = generator_for("hashes", "cuda")
    hashes = torch.randint(0, 5000, (2, 130, 16), generator=rng, device="cuda", dtype=torch.int32)
    hashes[:, 7] = -1

    def fetch() -> list[torch.Tensor]:
        return [hook() for hook in made.fetch(hashes, use_tma_aligned_col_major_sf=True)]

    def check(found: list[torch.Tensor]) -> None:
        for layer, rows in enumerate(found):
            want = exact[layer][hashes[layer].clamp_min(0).long()].flatten(1)
            check_bitwise(f"rows of layer {layer}", rows, want)

    fetch()
    with no_sync():
        found = fetch()
    check(found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fetch()
    hashes.copy_(hashes.flip(1))
    graph.replay()
    check(found)


def test_a_row_that_went_elsewhere_would_be_seen() -> None:
    topk_idx, weights = routed(64)
    x = fp8_tokens(64)
    ours = dispatch(cuda(x), topk_idx.cuda(), weights.cuda())
    row = int(ours[3].row_of[topk_idx.cuda() >= 0][5])
    ours[0][0].view(torch.uint8)[row] ^= 1
    with pytest.raises(AssertionError, match="values: first difference"):
        check_same_rows(ours, dispatch(x, topk_idx, weights), topk_idx)
