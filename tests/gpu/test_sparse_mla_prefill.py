"""sparse_mla_prefill on the GPU against its plain-torch twin.

Cases and tolerances are those of h20_ops.testing: FlashMLA's recipes and what our callers add.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from h20_ops import sparse_mla_prefill
from h20_ops.testing.cases_prefill import (
    PrefillCase,
    PrefillInputs,
    make_prefill,
    own_cases,
    upstream_cases,
)
from h20_ops.testing.compare import check_bitwise, check_close
from h20_ops.testing.tolerances import tolerance
from h20_ops.torch_ref import sparse_mla_prefill as twin

pytestmark = pytest.mark.gpu
OUTPUTS = ("out", "max_logits", "lse")
Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
MANY_ROWS = 10_000


@pytest.fixture(autouse=True)
def exact_fp32_twin() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    gc.collect()
    torch.cuda.empty_cache()


def run(inputs: PrefillInputs) -> Result:
    return sparse_mla_prefill(
        inputs.q,
        inputs.kv,
        inputs.indices,
        sm_scale=inputs.sm_scale,
        attn_sink=inputs.attn_sink,
        topk_length=inputs.topk_length,
    )


def run_twin(inputs: PrefillInputs) -> Result:
    return twin(
        inputs.q,
        inputs.kv,
        inputs.indices,
        sm_scale=inputs.sm_scale,
        attn_sink=inputs.attn_sink,
        topk_length=inputs.topk_length,
    )


def check(case: PrefillCase, got: Result, want: Result) -> None:
    for name, x, y in zip(OUTPUTS, got, want, strict=True):
        check_close(name, x, y, tolerance(f"{case.tolerance_prefix}.{name}"))


def every_case() -> list[PrefillCase]:
    return [case for case in (*upstream_cases(), *own_cases()) if case.s_q < MANY_ROWS]


@pytest.mark.parametrize("case", every_case(), ids=lambda case: case.id)
def test_the_kernel_agrees_with_its_twin(case: PrefillCase) -> None:
    inputs = make_prefill(case, "cuda")
    check(case, run(inputs), run_twin(inputs))


@pytest.mark.parametrize("indices", ["random", "all_invalid"])
def test_seventy_thousand_rows_agree_with_the_twin_at_both_ends(indices: str) -> None:
    kind = "all_invalid" if indices == "all_invalid" else "random"
    case = PrefillCase(s_q=70_000, s_kv=256, topk=256, indices=kind)  # type: ignore[arg-type]
    inputs = make_prefill(case, "cuda")
    out, max_logits, lse = run(inputs)
    for rows in (slice(0, 300), slice(69_700, 70_000)):
        part = PrefillInputs(
            q=inputs.q[rows],
            kv=inputs.kv,
            indices=inputs.indices[rows],
            sm_scale=inputs.sm_scale,
            attn_sink=inputs.attn_sink,
            topk_length=None,
        )
        check(case, (out[rows], max_logits[rows], lse[rows]), run_twin(part))


def test_rows_beyond_four_gigabytes_are_read_where_they_are() -> None:
    s_kv = 2**22 + 64  # rows of 1 KiB: the last ones start past 2^32 bytes
    kv = torch.zeros((s_kv, 1, 512), dtype=torch.bfloat16, device="cuda")
    case = PrefillCase(s_q=5, s_kv=64, topk=64, wide_keys=True)
    inputs = make_prefill(case, "cuda")
    kv[-64:] = inputs.kv
    valid = (inputs.indices >= 0) & (inputs.indices < 64)
    moved = torch.where(valid, inputs.indices + (s_kv - 64), -1)
    far = PrefillInputs(
        q=inputs.q,
        kv=kv,
        indices=moved,
        sm_scale=inputs.sm_scale,
        attn_sink=inputs.attn_sink,
        topk_length=None,
    )
    check(case, run(far), run_twin(inputs))


def test_repeated_runs_give_the_same_bits() -> None:
    inputs = make_prefill(PrefillCase(s_q=600, s_kv=4000, topk=640, length=True), "cuda")
    first = run(inputs)
    for _ in range(20):
        for name, x, y in zip(OUTPUTS, run(inputs), first, strict=True):
            check_bitwise(name, x, y)


def test_a_row_gives_the_same_bits_alone_and_among_others() -> None:
    inputs = make_prefill(PrefillCase(s_q=300, s_kv=2000, topk=640, wide_keys=True), "cuda")
    together = run(inputs)
    for row in (0, 131, 132, 299):
        part = slice(row, row + 1)
        alone = sparse_mla_prefill(
            inputs.q[part],
            inputs.kv,
            inputs.indices[part],
            sm_scale=inputs.sm_scale,
            attn_sink=inputs.attn_sink,
        )
        for name, x, y in zip(OUTPUTS, alone, together, strict=True):
            check_bitwise(name, x, y[part])


def test_a_captured_graph_follows_its_inputs() -> None:
    case = PrefillCase(s_q=150, s_kv=900, topk=640, length=True)
    inputs = make_prefill(case, "cuda")
    run(inputs)  # compiled and loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(inputs)
    assert inputs.topk_length is not None
    for shift in (0, 1, 17):
        inputs.q.copy_(inputs.q.roll(shift, 0))
        inputs.indices.copy_(inputs.indices.roll(shift, 0))
        inputs.topk_length.copy_(inputs.topk_length.roll(shift, 0))
        for tensor in captured:
            tensor.fill_(torch.nan)
        graph.replay()
        check(case, captured, run_twin(inputs))


@pytest.mark.parametrize("sink", [-torch.inf, torch.inf, 0.0, 80.0, -80.0, 3e4])
@pytest.mark.parametrize("topk", [64, 128, 640])
def test_sinks_of_every_size_only_enlarge_the_denominator(topk: int, sink: float) -> None:
    case = PrefillCase(s_q=20, s_kv=900, topk=topk)
    inputs = make_prefill(case, "cuda")
    assert inputs.attn_sink is not None
    inputs.attn_sink.fill_(sink)
    check(case, run(inputs), run_twin(inputs))


def test_rising_logits_rescale_what_came_before() -> None:
    # Every later block has larger logits by more than the kernel lets its reference lag behind.
    topk, blocks = 1024, 16
    q = torch.zeros((7, 64, 512), dtype=torch.bfloat16, device="cuda")
    q[..., 0] = 1.0
    kv = torch.randn((topk, 1, 512), device="cuda", generator=_rng(3)).to(torch.bfloat16)
    kv[:, 0, 0] = (torch.arange(topk, device="cuda") // (topk // blocks) * 9).to(torch.bfloat16)
    order = torch.arange(topk, dtype=torch.int32, device="cuda")
    for indices in (order, order.flip(0), order.view(blocks, -1).t().flatten()):
        inputs = PrefillInputs(
            q=q,
            kv=kv,
            indices=indices.expand(7, 1, topk).contiguous(),
            sm_scale=1.0,
            attn_sink=None,
            topk_length=None,
        )
        check(
            PrefillCase(s_q=7, s_kv=topk, topk=topk, wide_keys=True), run(inputs), run_twin(inputs)
        )


def test_lengths_stop_a_row_at_every_position() -> None:
    case = PrefillCase(s_q=200, s_kv=900, topk=192, length=True, wide_keys=True)
    inputs = make_prefill(case, "cuda")
    assert inputs.topk_length is not None
    inputs.topk_length.copy_(torch.arange(200, device="cuda") - 4)  # below 0 and above topk too
    check(case, run(inputs), run_twin(inputs))


def test_no_index_at_all_gives_empty_rows() -> None:
    case = PrefillCase(s_q=9, s_kv=50, topk=1)
    inputs = make_prefill(case, "cuda")
    out, max_logits, lse = sparse_mla_prefill(
        inputs.q, inputs.kv, inputs.indices[..., :0], sm_scale=0.1, attn_sink=inputs.attn_sink
    )
    assert not bool(out.any())
    assert bool((max_logits == -torch.inf).all()) and bool((lse == torch.inf).all())


def test_no_query_rows_give_empty_results() -> None:
    inputs = make_prefill(PrefillCase(s_q=1, s_kv=50, topk=8), "cuda")
    shapes = [
        tuple(x.shape)
        for x in sparse_mla_prefill(inputs.q[:0], inputs.kv, inputs.indices[:0], sm_scale=0.1)
    ]
    assert shapes == [(0, 64, 512), (0, 64), (0, 64)]


def test_the_output_is_contiguous_and_owns_its_storage() -> None:
    inputs = make_prefill(PrefillCase(s_q=70, s_kv=300, topk=128, strided=True), "cuda")
    out, _, _ = run(inputs)
    assert out.is_contiguous() and out.storage_offset() == 0
    assert out.untyped_storage().nbytes() == out.numel() * 2
    out[..., -64:] *= 2.0  # callers rotate the last 64 dimensions in place


def test_a_twin_with_one_key_too_many_is_told_from_the_kernel() -> None:
    case = PrefillCase(s_q=30, s_kv=300, topk=64)
    inputs = make_prefill(case, "cuda")
    got = run(inputs)
    inputs.indices[:, 0, 5] = (inputs.indices[:, 0, 5].clamp_min(0) + 1) % 300
    with pytest.raises(AssertionError, match=r"abs error|infinities"):
        check(case, got, run_twin(inputs))


def _rng(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)
