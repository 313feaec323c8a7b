"""sparse_mla_decode on the GPU against its plain-torch twin.

Cases and tolerances are those of h20_ops.testing: FlashMLA's recipes and what our callers add. Every
byte of a case's caches that no index row lists is poison.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from h20_ops import sparse_mla_decode
from h20_ops.cuda import sparse_mla_decode_kernel as kernel
from h20_ops.kv_cache import V41_FP4, V41_FP8, read_kv
from h20_ops.testing.byte_writer import write_288, write_528
from h20_ops.testing.cases_decode import (
    DecodeCase,
    DecodeInputs,
    Scope,
    empty_cache,
    far_cases,
    make_decode,
    own_cases,
    upstream_cases,
)
from h20_ops.testing.compare import check_bitwise, check_close
from h20_ops.testing.tolerances import Tolerance, tolerance
from h20_ops.torch_ref import sparse_mla_decode as twin

pytestmark = pytest.mark.gpu
Result = tuple[torch.Tensor, torch.Tensor]
RING = Scope(s_k=134, topk=128, page_size=134, page_stride=134 * 528 + 1056)
COMPRESSED = Scope(s_k=1500, topk=512, page_size=128, page_stride=114_048)
LONG = Scope(s_k=3000, topk=1024, page_size=64)
TWO_SCOPES = DecodeCase(b=9, main=RING, extra=COMPRESSED, wide_keys=True)
ONE_SCOPE = DecodeCase(b=9, main=LONG, wide_keys=True)


@pytest.fixture(autouse=True)
def exact_fp32_twin() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    gc.collect()
    torch.cuda.empty_cache()


def run(inputs: DecodeInputs, *, batch_invariant: bool = False) -> Result:
    return sparse_mla_decode(
        inputs.q,
        inputs.k_cache,
        inputs.indices,
        batch_invariant=batch_invariant,
        **inputs.kwargs(),
    )


def run_twin(inputs: DecodeInputs) -> Result:
    return twin(inputs.q, inputs.k_cache, inputs.indices, **inputs.kwargs())


def out_tolerance(case: DecodeCase) -> Tolerance:
    """The table's row; keys ten times as large make values and their rounding ten times as large."""
    row = tolerance(f"{case.tolerance_prefix}.out")
    return replace(row, abs=row.abs * 10) if case.wide_keys else row


def check(case: DecodeCase, got: Result, want: Result) -> None:
    check_close("out", got[0], want[0], out_tolerance(case))
    check_close("lse", got[1], want[1], tolerance(f"{case.tolerance_prefix}.lse"))


def check_same_bits(got: Result, want: Result) -> None:
    check_bitwise("out", got[0], want[0])
    check_bitwise("lse", got[1].transpose(1, 2), want[1].transpose(1, 2))  # as it is stored


def rows_of(inputs: DecodeInputs, rows: slice) -> DecodeInputs:
    def part(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[rows]

    return replace(
        inputs,
        q=inputs.q[rows],
        indices=inputs.indices[rows],
        topk_length=part(inputs.topk_length),
        extra_indices=part(inputs.extra_indices),
        extra_topk_length=part(inputs.extra_topk_length),
    )


@pytest.mark.parametrize(
    "case", [*upstream_cases(), *own_cases(), *far_cases()], ids=lambda case: case.id
)
def test_the_kernel_agrees_with_its_twin(case: DecodeCase) -> None:
    inputs = make_decode(case, "cuda")
    check(case, run(inputs), run_twin(inputs))


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("case", [TWO_SCOPES, ONE_SCOPE], ids=["128+512", "1024"])
def test_repeated_runs_give_the_same_bits(case: DecodeCase, batch_invariant: bool) -> None:
    inputs = make_decode(case, "cuda")
    first = run(inputs, batch_invariant=batch_invariant)
    for _ in range(20):
        again = run(inputs, batch_invariant=batch_invariant)
        check_same_bits(again, first)


@pytest.mark.parametrize("topk", [1024, 2048])
@pytest.mark.parametrize("extra", [None, COMPRESSED], ids=["alone", "extra"])
def test_a_row_has_the_same_bits_in_every_batch_when_asked(topk: int, extra: Scope | None) -> None:
    case = DecodeCase(b=150, main=replace(LONG, topk=topk), extra=extra, wide_keys=True)
    inputs = make_decode(case, "cuda")
    together = run(inputs, batch_invariant=True)
    for rows in (slice(0, 1), slice(131, 132), slice(140, 150), slice(0, 70)):
        alone = run(rows_of(inputs, rows), batch_invariant=True)
        check_same_bits(alone, (together[0][rows], together[1][rows]))


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 7, 10, 13])
def test_any_number_of_pieces_gives_the_same_result(
    splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "choose_splits", lambda *_: splits)
    for case in (TWO_SCOPES, replace(TWO_SCOPES, heads=128, s_q=2, length=True)):
        inputs = make_decode(case, "cuda")
        check(case, run(inputs), run_twin(inputs))


@pytest.mark.parametrize("case", [TWO_SCOPES, ONE_SCOPE], ids=["128+512", "1024"])
@pytest.mark.parametrize("b", [3, 140])
def test_a_captured_graph_follows_its_inputs(case: DecodeCase, b: int) -> None:
    case = replace(case, b=b, length=True)
    inputs = make_decode(case, "cuda")
    run(inputs)  # compiled and loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(inputs)
    assert inputs.topk_length is not None
    for shift in (0, 1, 2):
        inputs.q.copy_(inputs.q.roll(shift, 0))
        inputs.indices.copy_(inputs.indices.roll(shift, 0))
        inputs.topk_length.copy_(inputs.topk_length.roll(shift, 0))
        for tensor in captured:
            tensor.fill_(torch.nan)
        graph.replay()
        check(case, captured, run_twin(inputs))


def test_calls_in_a_row_do_not_see_each_others_workspace() -> None:
    # Kernels of successive calls may overlap at their ends; each must wait for what it reads.
    sets = [make_decode(replace(TWO_SCOPES, b=b), "cuda") for b in (1, 8, 40, 3, 200)]
    want = [run(inputs) for inputs in sets]
    torch.cuda.synchronize()
    for _ in range(30):
        got = [run(inputs) for inputs in sets]
        for result, first in zip(got, want, strict=True):
            check_same_bits(result, first)


@pytest.mark.parametrize("sink", [-torch.inf, torch.inf, 0.0, 80.0, -80.0, 3e4])
@pytest.mark.parametrize("b", [2, 150])
def test_sinks_of_every_size_only_enlarge_the_denominator(b: int, sink: float) -> None:
    case = replace(TWO_SCOPES, b=b)
    inputs = make_decode(case, "cuda")
    assert inputs.attn_sink is not None
    inputs.attn_sink.fill_(sink)
    check(case, run(inputs), run_twin(inputs))


def test_lengths_stop_a_row_at_every_position() -> None:
    case = replace(TWO_SCOPES, b=330, length=True)
    inputs = make_decode(case, "cuda")
    assert inputs.topk_length is not None and inputs.extra_topk_length is not None
    count = torch.arange(330, device="cuda", dtype=torch.int32)
    inputs.topk_length.copy_(count % 140 - 5)  # below 0 and above topk too
    inputs.extra_topk_length.copy_(count * 2 - 60)
    check(case, run(inputs), run_twin(inputs))


def test_repeated_slots_count_as_often_as_they_are_listed() -> None:
    inputs = make_decode(replace(TWO_SCOPES, sink=False), "cuda")
    assert inputs.extra_indices is not None
    inputs.indices[:, :, :100] = inputs.indices[:, :, :1]
    inputs.extra_indices[:, :, 1::2] = inputs.extra_indices[:, :, ::2]
    check(TWO_SCOPES, run(inputs), run_twin(inputs))


def test_missing_keys_in_mid_row_and_whole_missing_blocks_are_skipped() -> None:
    inputs = make_decode(replace(TWO_SCOPES, b=70, varlen=False), "cuda")
    assert inputs.extra_indices is not None
    for row in range(70):  # row r keeps runs of keys that start at r
        inputs.indices[row, :, row : row + 17] = -1
        inputs.extra_indices[row, :, : 7 * row] = -1
    check(TWO_SCOPES, run(inputs), run_twin(inputs))


def test_rising_logits_rescale_what_came_before() -> None:
    # Later blocks have larger logits by more than the running maximum may lag behind.
    cache = empty_cache(16, 64, V41_FP8, 64 * 528, torch.device("cuda"))
    keys = torch.randn((1024, 512), device="cuda", generator=_rng(3))
    keys[:, 0] = (torch.arange(1024, device="cuda") // 64 * 9).float()
    from h20_ops.kv_cache import write_kv

    write_kv(cache, torch.arange(1024, device="cuda"), keys.bfloat16(), V41_FP8)
    q = torch.zeros((3, 1, 64, 512), dtype=torch.bfloat16, device="cuda")
    q[..., 0] = 1.0
    order = torch.arange(1024, dtype=torch.int32, device="cuda")
    for row in (order, order.flip(0), order.view(16, 64).t().flatten()):
        inputs = DecodeInputs(
            q=q,
            k_cache=cache,
            indices=row.expand(3, 1, 1024).contiguous(),
            sm_scale=1.0,
            layout=V41_FP8,
            attn_sink=None,
            topk_length=None,
        )
        for batch_invariant in (False, True):
            got = run(inputs, batch_invariant=batch_invariant)
            check(ONE_SCOPE, got, run_twin(inputs))


def one_key_each(inputs: DecodeInputs) -> torch.Tensor:
    """Attend to one key per row: the output is that key, to the bit."""
    out, _ = run(inputs)
    return out[:, 0]


def test_every_fp8_code_and_scale_is_read_exactly() -> None:
    codes = torch.arange(256, dtype=torch.uint8, device="cuda")
    codes = codes[(codes & 0x7F) != 0x7F].repeat(3)[:512]
    scales = torch.arange(80, 192, dtype=torch.uint8, device="cuda")
    cache = torch.zeros((112, 1, 1, 528), dtype=torch.uint8, device="cuda")
    cache[..., :512] = codes
    cache[:, 0, 0, 512:] = scales.unsqueeze(1)
    slots = torch.arange(112, dtype=torch.int32, device="cuda").view(112, 1, 1)
    inputs = DecodeInputs(
        q=torch.zeros((112, 1, 64, 512), dtype=torch.bfloat16, device="cuda"),
        k_cache=cache,
        indices=slots,
        sm_scale=1.0,
        layout=V41_FP8,
        attn_sink=None,
        topk_length=None,
    )
    want = read_kv(cache, slots[:, 0, 0], V41_FP8).bfloat16()
    got = one_key_each(inputs) + 0.0  # -0 counts as 0: a product of sums
    check_bitwise("out", got, (want + 0.0).unsqueeze(1).expand_as(got).contiguous())


def test_every_fp4_code_and_scale_is_read_exactly() -> None:
    scales = torch.arange(127, dtype=torch.uint8, device="cuda")  # e4m3, 0 and all positive
    cache = torch.zeros((127, 1, 1, 288), dtype=torch.uint8, device="cuda")
    cache[..., :256] = torch.arange(256, dtype=torch.uint8, device="cuda")
    cache[:, 0, 0, 256:] = scales.unsqueeze(1)
    slots = torch.arange(127, dtype=torch.int32, device="cuda").view(127, 1, 1)
    inputs = DecodeInputs(
        q=torch.zeros((127, 1, 64, 512), dtype=torch.bfloat16, device="cuda"),
        k_cache=torch.zeros((1, 1, 1, 528), dtype=torch.uint8, device="cuda"),
        indices=torch.full((127, 1, 1), -1, dtype=torch.int32, device="cuda"),
        sm_scale=1.0,
        layout=V41_FP8,
        attn_sink=None,
        topk_length=None,
        extra_k_cache=cache,
        extra_layout=V41_FP4,
        extra_indices=slots,
    )
    want = read_kv(cache, slots[:, 0, 0], V41_FP4).bfloat16()
    got = one_key_each(inputs) + 0.0
    check_bitwise("out", got, (want + 0.0).unsqueeze(1).expand_as(got).contiguous())


def test_caches_of_an_independent_writer_are_read_alike() -> None:
    rng = torch.Generator().manual_seed(5)
    main, extra = bytearray(2 * 2 * 528), bytearray(2 * 3 * 288)
    rows = torch.randn((10, 512), generator=rng).tolist()
    for slot in range(4):
        write_528(main, slot // 2 * 2 * 528, slot % 2, rows[slot])
    for slot in range(6):
        write_288(extra, slot // 3 * 3 * 288, slot % 3, rows[4 + slot])
    k_cache = torch.frombuffer(main, dtype=torch.uint8).view(2, 2, 1, 528).cuda()
    extra_cache = torch.frombuffer(extra, dtype=torch.uint8).view(2, 3, 1, 288).cuda()
    q = torch.randn((4, 1, 64, 512), generator=rng).clamp(-1, 1).bfloat16().cuda()
    inputs = DecodeInputs(
        q=q,
        k_cache=k_cache,
        indices=torch.arange(4, dtype=torch.int32, device="cuda").expand(4, 1, 4).contiguous(),
        sm_scale=512**-0.5,
        layout=V41_FP8,
        attn_sink=None,
        topk_length=None,
        extra_k_cache=extra_cache,
        extra_layout=V41_FP4,
        extra_indices=torch.arange(6, dtype=torch.int32, device="cuda")
        .expand(4, 1, 6)
        .contiguous(),
    )
    out, _ = run(inputs)
    keys = torch.tensor(rows, dtype=torch.float64)
    logits = q[:, 0].double().cpu() @ keys.t() * 512**-0.5
    exact = torch.softmax(logits, dim=-1) @ keys
    error = (out[:, 0].double().cpu() - exact).norm() / exact.norm()
    assert error < 0.12, f"relative distance {float(error)} from the unquantised keys"
    check(TWO_SCOPES, run(inputs), run_twin(inputs))


def test_strided_queries_and_index_rows_are_read_in_place() -> None:
    case = replace(TWO_SCOPES, s_q=3)
    inputs = make_decode(case, "cuda")
    assert inputs.extra_indices is not None
    pad = torch.nn.functional.pad
    strided = replace(
        inputs,
        q=pad(inputs.q, (0, 8, 0, 2))[:, :, :64, :512],
        indices=pad(inputs.indices, (0, 8), value=2**31 - 1)[..., :128],
        extra_indices=pad(inputs.extra_indices, (0, 3), value=2**31 - 1)[..., :512],
    )
    assert not strided.q.is_contiguous() and not strided.indices.is_contiguous()
    check_same_bits(run(strided), run(inputs))


def test_the_output_is_contiguous_and_owns_its_storage() -> None:
    inputs = make_decode(replace(TWO_SCOPES, s_q=2), "cuda")
    out, lse = run(inputs)
    assert out.is_contiguous() and out.storage_offset() == 0
    assert out.untyped_storage().nbytes() == out.numel() * 2
    assert lse.shape == (9, 64, 2) and lse.transpose(1, 2).is_contiguous()
    out[..., -64:] *= 2.0  # callers rotate the last 64 dimensions in place


def test_decode_serves_as_prefill_of_one_long_request() -> None:
    case = DecodeCase(b=1, s_q=4096, main=RING, extra=COMPRESSED, sink=False)
    inputs = make_decode(case, "cuda")
    check(case, run(inputs), run_twin(inputs))


def test_a_twin_with_one_key_too_many_is_told_from_the_kernel() -> None:
    inputs = make_decode(replace(TWO_SCOPES, varlen=False), "cuda")
    got = run(inputs)
    inputs.indices[:, 0, 5] = -1
    with pytest.raises(AssertionError, match=r"abs error|infinities|normalised"):
        check(TWO_SCOPES, got, run_twin(inputs))


def _rng(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)
