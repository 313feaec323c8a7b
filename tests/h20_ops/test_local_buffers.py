"""One-rank expert and Engram buffers: the rows that DeepEP would give, without a second rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h20_ops.errors import UnsupportedError
from h20_ops.formats import decode_e4m3, decode_ue8m0
from h20_ops.local_buffers import LocalEngramBuffer, LocalEPBuffer
from h20_ops.local_buffers.expert import worst_case_rows

pytestmark = pytest.mark.torch

ONE = SimpleNamespace(size=lambda: 1)
HIDDEN, EXPERTS, TOPK = 256, 16, 3


def buffer() -> LocalEPBuffer:
    return LocalEPBuffer(
        group=ONE,
        num_max_tokens_per_rank=64,
        hidden=HIDDEN,
        num_topk=TOPK,
        use_fp8_dispatch=True,
        allow_hybrid_mode=True,
        allow_multiple_reduction=True,
        explicitly_destroy=True,
    )


def routed(tokens: int, seed: int, dead: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, EXPERTS, generator=generator)
    topk_idx = scores.topk(TOPK, dim=1).indices
    topk_idx[torch.rand(tokens, TOPK, generator=generator) < dead] = -1
    return topk_idx, torch.rand(tokens, TOPK, generator=generator)


def fp8_tokens(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 0x7F, (tokens, HIDDEN), dtype=torch.uint8, generator=generator)
    scales = torch.rand(HIDDEN // 128, -(-tokens // 4) * 4, generator=generator).t()[:tokens]
    return codes.view(torch.float8_e4m3fn), scales


def dispatch(x: Any, topk_idx: torch.Tensor, weights: torch.Tensor, **more: Any) -> Any:
    return (
        buffer()
        .dispatch(
            x=x,
            num_sms=0,
            topk_idx=topk_idx,
            topk_weights=weights,
            num_experts=EXPERTS,
            num_max_tokens_per_rank=64,
            expert_alignment=128,
            previous_event=None,
            async_with_compute_stream=True,
            allocate_on_comm_stream=False,
            do_handle_copy=False,
            do_cpu_sync=True,
            do_expand=True,
            use_tma_aligned_col_major_sf=True,
            defer_epilogue=True,
            **more,
        )
        .current_stream_wait()
    )


@pytest.mark.parametrize("tokens", [1, 7, 130])
def test_rows_lie_with_their_expert_and_carry_their_token(tokens: int) -> None:
    topk_idx, weights = routed(tokens, tokens)
    x = fp8_tokens(tokens, tokens)
    (values, scales), none, row_weights, handle = dispatch(x, topk_idx, weights)
    assert none is None
    rows = worst_case_rows(tokens, TOPK, EXPERTS, 128)
    assert values.shape == (rows, HIDDEN) and rows % 128 == 0
    assert scales.stride() == (1, rows) and scales.dtype == torch.float32
    counts = torch.bincount(topk_idx[topk_idx >= 0], minlength=EXPERTS)
    starts = [0]
    for count in counts.tolist():
        starts.append(starts[-1] + -(-count // 128) * 128)
    ends = handle.psum_num_recv_tokens_per_expert
    assert ends.dtype == torch.int32
    assert ends.tolist() == [
        start + count for start, count in zip(starts, counts.tolist(), strict=False)
    ]
    for token in range(tokens):
        for column in range(TOPK):
            expert, row = int(topk_idx[token, column]), int(handle.row_of[token, column])
            if expert < 0:
                assert row == -1
                continue
            assert starts[expert] <= row < int(ends[expert])
            assert torch.equal(values.view(torch.uint8)[row], x[0].view(torch.uint8)[token])
            assert torch.equal(scales[row], x[1][token])
            assert row_weights[row] == weights[token, column]
    used = handle.row_of[handle.row_of >= 0]
    assert used.unique().numel() == used.numel()
    unused = torch.ones(rows, dtype=torch.bool)
    unused[used] = False
    assert bool((row_weights[unused] == 0).all())
    assert not bool(decode_e4m3(values.view(torch.uint8)).isnan().any())


def test_combine_adds_each_tokens_rows_and_the_shared_expert() -> None:
    tokens = 40
    topk_idx, weights = routed(tokens, 3)
    x = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(3)).bfloat16()
    rows, _, row_weights, handle = dispatch(x, topk_idx, weights)
    factors = torch.arange(1, EXPERTS + 1).float()
    expert_of = torch.zeros(rows.shape[0], dtype=torch.int64)
    expert_of[handle.row_of[topk_idx >= 0]] = topk_idx[topk_idx >= 0]
    outputs = (rows.float() * row_weights[:, None] * factors[expert_of, None]).bfloat16()
    unused = torch.ones(rows.shape[0], dtype=torch.bool)
    unused[handle.row_of[topk_idx >= 0]] = False
    outputs[unused] = torch.nan  # what the matrix products leave in padding must not be read
    bias = torch.randn(tokens, HIDDEN).bfloat16()
    combined, none = (
        buffer()
        .combine(
            x=outputs,
            handle=handle,
            num_sms=0,
            bias=bias,
            previous_event=LocalEPBuffer.capture(),
            async_with_compute_stream=True,
            allocate_on_comm_stream=True,
            defer_epilogue=True,
        )
        .current_stream_wait()
    )
    want = bias.float()
    for token in range(tokens):
        for column in range(TOPK):
            expert = int(topk_idx[token, column])
            if expert >= 0:
                term = x[token].float() * weights[token, column] * factors[expert]
                want[token] += term.bfloat16().float()
    assert none is None and combined.dtype == torch.bfloat16
    torch.testing.assert_close(combined.float(), want, rtol=1e-2, atol=1e-2)


def test_no_token_gives_no_row_and_no_expert_gives_the_bias() -> None:
    topk_idx = torch.empty(0, TOPK, dtype=torch.int64)
    (values, scales), _, weights, handle = dispatch(
        fp8_tokens(0, 0), topk_idx, torch.empty(0, TOPK)
    )
    assert values.shape == (0, HIDDEN) and scales.shape == (0, 2) and weights.shape == (0,)
    assert handle.psum_num_recv_tokens_per_expert.tolist() == [0] * EXPERTS
    empty, _ = buffer().combine(x=values.to(torch.bfloat16), handle=handle).current_stream_wait()
    assert empty.shape == (0, HIDDEN)
    nobody = torch.full((5, TOPK), -1)
    rows, _, _, handle = dispatch(torch.ones(5, HIDDEN).bfloat16(), nobody, torch.ones(5, TOPK))
    bias = torch.full((5, HIDDEN), 2.0).bfloat16()
    out, _ = buffer().combine(x=rows, handle=handle, bias=bias).current_stream_wait()
    assert torch.equal(out, bias)


def test_counts_are_added_to_the_statistics_and_results_are_new_tensors() -> None:
    topk_idx, weights = routed(20, 9)
    stats = torch.ones(EXPERTS, dtype=torch.int32)
    x = torch.ones(20, HIDDEN).bfloat16()
    first = dispatch(x, topk_idx, weights, cumulative_local_expert_recv_stats=stats)
    counts = torch.bincount(topk_idx[topk_idx >= 0], minlength=EXPERTS)
    assert stats.tolist() == (counts + 1).tolist()
    first[0].data = torch.empty(0)  # the engine empties what it received
    second = dispatch(x, topk_idx, weights)
    assert second[0].shape[0] == worst_case_rows(20, TOPK, EXPERTS, 128)
    assert x.shape == (20, HIDDEN)


def test_more_ranks_are_sent_to_the_real_package() -> None:
    two = SimpleNamespace(size=lambda: 2)
    with pytest.raises(UnsupportedError, match=r"deep_ep\.EPBuffer"):
        LocalEPBuffer(group=two)
    with pytest.raises(UnsupportedError, match=r"deep_ep\.EngramBuffer"):
        LocalEngramBuffer(group=two)
    with pytest.raises(UnsupportedError, match="DEEPINFER_ENGRAM_FORCE_GPU_STORAGE"):
        LocalEngramBuffer(group=ONE, use_cpu_rdma_storage=True)


def engram(rows: list[int], width: int, entries: int, *, fp8: bool) -> LocalEngramBuffer:
    gpu_bytes, storage = LocalEngramBuffer.get_storage_size_hint(ONE, rows, width, 9, entries)
    queues, depth, atomic = LocalEngramBuffer.get_theoretical_config(ONE, len(rows), 9, entries)
    made = LocalEngramBuffer(
        group=ONE,
        num_gpu_bytes=gpu_bytes,
        num_rdma_storage_size=storage,
        use_cpu_rdma_storage=False,
        num_allocated_qps=queues,
        allow_hybrid_mode=True,
        explicitly_destroy=True,
        qp_depth=depth,
        restrict_rd_atomic=atomic,
    )
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    made.set_config(rows, width, 9, entries, dtype, width // 128 if fp8 else 0)
    return made


def test_engram_hooks_give_the_dequantised_rows_bit_for_bit() -> None:
    rows, width, entries = [50, 70], 256, 4
    generator = torch.Generator().manual_seed(5)
    tables = [
        torch.randint(0, 0x7F, (count, width), dtype=torch.uint8, generator=generator)
        for count in rows
    ]
    exponents = [
        torch.randint(100, 140, (count, width // 32), generator=generator).to(torch.uint8)
        for count in rows
    ]
    made = engram(rows, width, entries, fp8=True)
    packed = [e.contiguous().view(torch.int32) for e in exponents]
    made.write([t.view(torch.float8_e4m3fn) for t in tables], sfs=packed)
    hashes = torch.randint(0, 50, (2, 6, entries), generator=generator, dtype=torch.int32)
    hashes[:, 2] = -1
    for layer, hook in enumerate(made.fetch(hashes, use_tma_aligned_col_major_sf=True)):
        found = hook()
        assert found.shape == (6, entries * width) and found.dtype == torch.bfloat16
        exact = decode_e4m3(tables[layer]) * decode_ue8m0(exponents[layer]).repeat_interleave(32, 1)
        want = exact[hashes[layer].clamp_min(0).long()].flatten(1)
        assert torch.equal(found.float(), want), "e4m3 times a power of two is exact in bf16"
    assert [hook().shape for hook in made.fetch(hashes[:, :0])] == [(0, 1024), (0, 1024)]
    made.destroy()
    with pytest.raises(AssertionError, match="write the tables"):
        made.fetch(hashes)


def test_bf16_tables_pass_through_and_wrong_shapes_are_named() -> None:
    made = engram([10], 128, 2, fp8=False)
    table = torch.randn(10, 128).bfloat16()
    made.write([table])
    (hook,) = made.fetch(torch.tensor([[[3, 9]]], dtype=torch.int32))
    assert torch.equal(hook(), table[[3, 9]].flatten().unsqueeze(0))
    with pytest.raises(AssertionError, match="want \\(10, 128\\)"):
        made.write([torch.zeros(9, 128).bfloat16()])
    fp8 = engram([10], 128, 2, fp8=True)
    with pytest.raises(AssertionError, match="exponents come with"):
        fp8.write([torch.zeros(10, 128, dtype=torch.float8_e4m3fn)])
