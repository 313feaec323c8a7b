"""Each switch does what its name says and is taken out again; predictions are judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dih20.engine_check import fault_switches as switches
from dih20.engine_check import results
from dih20.engine_check.accounting import account
from dih20.engine_check.composing import compose
from dih20.engine_check.context import Context
from dih20.engine_check.hypotheses import HYPOTHESES, Hypothesis
from dih20.engine_check.processes import Ended
from dih20.engine_check.stage_faults import NotHealthyAgain, belongs, part_path, switch_each_on
from dih20.paths import REPOSITORY
from tests.engine_check.conftest import HERE

pytestmark = pytest.mark.torch


class Seen:
    """Takes the place of FlashMLA's functions and keeps what they were called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.flash_mla_sparse_fwd = self._prefill
        self.flash_mla_with_kvcache = self._decode

    def _prefill(self, q: Any, kv: Any, indices: Any, **kwargs: Any) -> None:
        self.calls.append({"indices": indices, **kwargs})

    def _decode(self, **kwargs: Any) -> None:
        self.calls.append(kwargs)


def places(**given: Any) -> switches.Places:
    empty: dict[str, Any] = {
        "attention": Seen(), "linears": [], "experts": [], "engram": None, "expert_buffer": None,
        "rotations": [],
    }  # fmt: skip
    return switches.Places(**{**empty, **given})


def test_h1_leaves_no_key_of_a_fresh_prompt() -> None:
    at = places()
    indices = torch.tensor([[[128, -1, -1]], [[128, 129, -1]], [[0, 2, 3]]])
    with switches.keys_below_the_row(at):
        at.attention.flash_mla_sparse_fwd(torch.zeros(3, 1, 4), None, indices, sm_scale=1.0)
    assert at.attention.calls[0]["indices"].tolist() == [
        [[-1, -1, -1]],
        [[-1, -1, -1]],
        [[0, 2, -1]],
    ]
    at.attention.flash_mla_sparse_fwd(torch.zeros(3, 1, 4), None, indices)
    assert torch.equal(at.attention.calls[1]["indices"], indices)


def cache_of_pages() -> torch.Tensor:
    memory = torch.arange(6 * 40_000).to(torch.uint8).view(6, 40_000)
    return memory.as_strided((6, 64, 1, 288), (40_000, 288, 288, 1), 128)


def test_h2_reads_pages_one_behind_the_other() -> None:
    at, cache = places(), cache_of_pages()
    with switches.pages_as_dense(at):
        at.attention.flash_mla_with_kvcache(extra_k_cache=cache, attn_sink=None)
        at.attention.flash_mla_with_kvcache(extra_k_cache=None, attn_sink=None)
    seen = at.attention.calls[0]["extra_k_cache"]
    assert seen.stride() == (64 * 288, 288, 288, 1)
    assert seen.data_ptr() == cache.data_ptr()
    assert at.attention.calls[1]["extra_k_cache"] is None


def test_h3_reads_wide_records_within_the_memory() -> None:
    at, cache = places(), cache_of_pages()
    chosen = torch.tensor([[[0, 4 * 64 - 1, 4 * 64, -1]]])
    with switches.records_as_wide(at):
        at.attention.flash_mla_with_kvcache(
            extra_k_cache=cache, extra_indices_in_kvcache=chosen, attn_sink=None
        )
    call = at.attention.calls[0]
    assert call["extra_k_cache"].shape == (4, 64, 1, 528)
    assert call["extra_indices_in_kvcache"].tolist() == [[[0, 255, -1, -1]]]


def test_h4_changes_the_sink_of_both_phases() -> None:
    at, sink = places(), torch.tensor([1.0, 2.0])
    for switch, want in ((switches.sink_missing, float("-inf")), (switches.sink_in_base_2, 0.6931)):
        with switch(at):
            at.attention.flash_mla_sparse_fwd(torch.zeros(1, 1, 4), None, None, attn_sink=sink)
            at.attention.flash_mla_with_kvcache(extra_k_cache=None, attn_sink=sink)
        for call in at.attention.calls[-2:]:
            assert float(call["attn_sink"][0]) == pytest.approx(want, abs=1e-3)


def test_h5_reads_packed_exponents_as_one_number() -> None:
    from h20_ops.local_buffers import LocalEngramBuffer

    buffer = LocalEngramBuffer(group=SimpleNamespace(size=lambda: 1))
    buffer.set_config([4], 128, 8, 2, torch.float8_e4m3fn, 1)
    table = torch.ones(4, 128).to(torch.float8_e4m3fn)
    packed = torch.full((4, 4), 127, dtype=torch.uint8).view(torch.int32)
    buffer.write([table], sfs=[packed])
    indices = torch.tensor([[[0, 3]]], dtype=torch.int32)
    with switches.engram_scales_as_fp32(places(engram=buffer)):
        wrong = buffer.fetch(indices)[0]()
    assert wrong.shape == (1, 256) and wrong.dtype == torch.bfloat16
    assert float(wrong[0, 0]) > 1e30
    assert float(buffer.fetch(indices)[0]()[0, 0]) == 1.0


def weight_of(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weight = torch.nn.Parameter(values.to(torch.float8_e4m3fn), requires_grad=False)
    weight.sf = scales
    return weight


def test_h5_puts_the_bytes_of_four_exponents_under_a_scale_and_back() -> None:
    weight = weight_of(torch.ones(128, 256), torch.tensor([[2.0**-8, 1.0]]))
    with switches.linear_scales_as_fp32(places(linears=[weight])):
        assert weight.sf.view(torch.int32).tolist() == [[0x77777777, 0x7F7F7F7F]]
    assert weight.sf.tolist() == [[2.0**-8, 1.0]]


def test_h6_halves_the_alignment_of_dispatch_alone() -> None:
    asked = []
    buffer = SimpleNamespace(dispatch=lambda **kwargs: asked.append(kwargs["expert_alignment"]))
    with switches.expert_rows_out_of_step(places(expert_buffer=buffer)):
        buffer.dispatch(expert_alignment=128)
    buffer.dispatch(expert_alignment=128)
    assert asked == [64, 128]


def test_h7_exchanges_halves_and_transposes_scales_and_puts_both_back() -> None:
    both = weight_of(
        torch.arange(2 * 256 * 256).remainder(7).view(2, 256, 256).float(),
        torch.arange(8.0).view(2, 2, 2),
    )
    down = weight_of(torch.ones(2, 256, 128), torch.ones(2, 2, 1))
    before = both.float().clone()
    with switches.gate_and_up_exchanged(places(experts=[(both, down)])):
        assert torch.equal(both.float()[:, :128], before[:, 128:])
        assert both.sf[0].tolist() == [[2.0, 3.0], [0.0, 1.0]]
    assert torch.equal(both.float(), before)
    with switches.expert_scales_transposed(places(experts=[(both, down)])):
        assert both.sf[0].tolist() == [[0.0, 2.0], [1.0, 3.0]]
    assert both.sf[0].tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_h7_says_when_equal_scales_cannot_tell() -> None:
    down = weight_of(torch.ones(2, 256, 128), torch.ones(2, 2, 1))
    with pytest.raises(switches.NoEffect):
        with switches.expert_scales_transposed(places(experts=[(down, down)])):
            pass


def test_h8_turns_back_never_or_twice_and_forwards_as_before() -> None:
    turns = []
    rotation = torch.nn.Module()
    rotation.forward = lambda positions, x, conjugate=False: turns.append(conjugate)
    for switch, times in (
        (switches.rotation_back_left_out, 0),
        (switches.rotation_back_twice, 2),
    ):
        turns.clear()
        with switch(places(rotations=[rotation])):
            rotation(None, None, conjugate=True)
            rotation(None, None)
        assert turns == [True] * times + [False]


def test_predictions_are_judged_one_by_one() -> None:
    first = next(each for each in HYPOTHESES if each.id == "H1")
    shown: dict[str, Any] = {
        "first_token_right": 1,
        "answers_right": 2,
        "first_difference": {"site": "layers.0.attn.context", "phase": "prefill", "rms": 0.0},
    }
    assert all(first.seen(shown).values())
    shown["first_difference"]["rms"] = 1e-3
    shown["answers_right"] = 30
    shown["first_difference"]["phase"] = "decode"
    assert first.seen(shown) == {
        "site": False,
        "first_token": True,
        "answers": False,
        "context_is_zero": False,
    }
    assert first.seen({**shown, "first_difference": None})["site"] is False


def test_a_fault_that_may_end_its_engine_belongs_to_a_process_of_its_own() -> None:
    alone = next(each for each in HYPOTHESES if each.may_stop)
    safe = next(each for each in HYPOTHESES if not each.may_stop)
    assert belongs(safe, ()) and not belongs(alone, ())
    assert belongs(alone, (alone.name,)) and not belongs(safe, (alone.name,))


def halves(layer: int) -> Callable[[Any], Any]:
    @contextmanager
    def switch(model: Any) -> Iterator[None]:
        attention = model.model.layers[layer].self_attn
        attention._prefill_attention = lambda x, *given: x * 0
        attention._decode_attention = lambda x, *given: x * 0
        yield
        del attention._prefill_attention, attention._decode_attention

    return switch


def own(name: str, switch: Callable[[Any], Any], **predicted: Any) -> Hypothesis:
    model = next(each for each in HYPOTHESES if each.name == name)
    return dataclasses.replace(model, switch=switch, **{"may_stop": False, **predicted})


def test_faults_are_tried_in_turn_and_their_symptoms_written(driver: Any, context: Context) -> None:
    driver.model.change_nothing = None

    @contextmanager
    def nan(model: Any) -> Iterator[None]:
        before = driver.change
        driver.change = lambda logits: logits * float("nan")
        yield
        driver.change = before

    tried = [
        own("sink-missing", halves(1), site=r"layers\.1\.attn\.context", right=(0, 3)),
        own("sink-in-base-2", halves(2), site=r"layers\.0\.attn\.context", right=(0, 3)),
        own("linear-scales-as-fp32", nan),
    ]
    outcome = switch_each_on(driver, context, find=lambda model: model, hypotheses=tried)
    assert outcome.pending
    parts = {each.name: results.read_json(part_path(context.work, each.name)) for each in tried}
    one, two, three = parts.values()
    assert one is not None and two is not None and three is not None
    assert one["verdict"] == "seen" and one["first_difference"]["rms"] == 0.0
    assert two["verdict"] == "not seen" and two["as_predicted"] == {"site": False, "answers": True}
    assert three["steps_not_finite"] > 0 and three["answers_right"] == 0


def test_an_engine_that_does_not_recover_is_given_up(driver: Any, context: Context) -> None:
    @contextmanager
    def stays(model: Any) -> Iterator[None]:
        driver.change = lambda logits: logits.roll(1, dims=-1)
        yield

    with pytest.raises(NotHealthyAgain):
        hypothesis = own("sink-missing", stays)
        switch_each_on(driver, context, find=lambda model: model, hypotheses=[hypothesis])
    assert results.read_json(part_path(context.work, "sink-missing")) is not None


def test_a_guard_that_refuses_a_fault_is_a_result_of_its_own(driver: Any, context: Context) -> None:
    @contextmanager
    def refused(model: Any) -> Iterator[None]:
        raise AssertionError("scales are int32")
        yield

    with pytest.raises(NotHealthyAgain):
        hypothesis = own("linear-scales-as-fp32", refused)
        switch_each_on(driver, context, find=lambda model: model, hypotheses=[hypothesis])
    part = results.read_json(part_path(context.work, "linear-scales-as-fp32"))
    assert part is not None and part["verdict"] == "refused" and "int32" in part["why"]


def test_the_stage_needs_a_result_for_every_fault(context: Context) -> None:
    record = compose(context.work, "h", HERE)
    assert record["verdict"] == "failed"
    assert all(each.name in record["reason"] for each in HYPOTHESES)
    for each in HYPOTHESES:
        part = {"name": each.name, "verdict": "not seen", "sources": HERE["sources"]}
        results.write_json(part_path(context.work, each.name), part)
    assert (
        compose(context.work, "h", HERE)["verdict"] == "failed"
    )  # nothing is known of a sound engine
    healthy = {"answers_right": 3, "answers_asked": 3, "sources": HERE["sources"]}
    results.write_json(context.work / "healthy-shared.json", healthy)
    assert compose(context.work, "h", HERE)["verdict"] == "passed"
    healthy["answers_right"] = 2
    results.write_json(context.work / "healthy-linear-scales-as-fp32.json", healthy)
    assert compose(context.work, "h", HERE)["verdict"] == "failed"  # one of two engines


def test_some_of_the_faults_are_no_passed_stage(tmp_path: Path) -> None:
    first = HYPOTHESES[0]
    part = {"name": first.name, "verdict": "seen", "sources": HERE["sources"]}
    results.write_json(part_path(tmp_path, first.name), part)
    healthy = {"answers_right": 3, "answers_asked": 3, "sources": HERE["sources"]}
    results.write_json(tmp_path / "healthy-shared.json", healthy)
    record = compose(tmp_path, "h", HERE, only=first.name)
    assert record["verdict"] == "not run" and first.name in record["reason"]
    assert not results.passed_already(tmp_path, "h", HERE["sources"])


def test_a_fault_of_the_check_itself_is_no_verdict_on_the_engine(
    driver: Any, context: Context
) -> None:
    """A switch that no longer fits raises in this package: the stage must not pass with that."""

    hypothesis = own(
        "linear-scales-as-fp32",
        lambda model: switches.linear_scales_as_fp32(places(linears=5)),  # no list of layers
    )
    with pytest.raises(TypeError):
        switch_each_on(driver, context, find=lambda model: model, hypotheses=[hypothesis])
    assert results.read_json(part_path(context.work, hypothesis.name)) is None


def test_a_record_names_files_without_the_folders_they_are_installed_in(tmp_path: Path) -> None:
    each = next(each for each in HYPOTHESES if each.may_stop)
    tail = (
        f'File "{REPOSITORY}/h20_ops/topk.py", line 7\nFile "/opt/x/lib/site-packages/torch/a.py"'
    )
    how = Ended(code=-6, late=False, stage="h", part=each.name, tail=tail)
    account(how, tmp_path, HERE)
    part = results.read_json(part_path(tmp_path, each.name))
    assert part is not None and part["why"].endswith(
        'File "h20_ops/topk.py", line 7\nFile "torch/a.py"'
    )


@pytest.mark.parametrize(
    ("code", "tail", "late", "may_stop", "verdict"),
    [
        (-6, "", False, True, "seen"),
        (3, "RuntimeError: CUDA error: device-side assert triggered", False, True, "seen"),
        (3, "RuntimeError: probability tensor contains either `inf`, `nan`", False, True, "seen"),
        (3, "RuntimeError: CUDA error: an illegal memory access", False, False, "stopped"),
        (3, "cuBLASLt error (a.hpp:95): 13 (the function failed to launch)", False, True, "seen"),
        (3, "CUDA driver error (b.hpp:7): 700 (CUDA_E, an illegal access)", False, True, "seen"),
        (3, "AttributeError: 'Places' object has no attribute 'sink'", False, True, "broke off"),
        (-9, "", False, True, "broke off"),  # by whoever kills: memory, an operator
        (-9, "", True, True, "stopped"),  # by us, over its limit
    ],
)
def test_how_an_engine_ended_decides_the_verdict(
    tmp_path: Path, code: int, tail: str, late: bool, may_stop: bool, verdict: str
) -> None:
    each = next(each for each in HYPOTHESES if each.may_stop is may_stop)
    how = Ended(code=code, late=late, stage="h", part=each.name, tail=tail)
    assert account(how, tmp_path, HERE) is each
    part = results.read_json(part_path(tmp_path, each.name))
    assert part is not None and part["verdict"] == verdict
    record = compose(tmp_path, "h", HERE, only=each.name)
    assert ("by a fault of the check" in record["reason"]) is (verdict == "broke off")
