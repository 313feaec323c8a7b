"""Stage e: dumps through the map, map faults named one by one, the comparison on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.engine_check.composing import compose
from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.covering import not_covered, wanted_records
from dih20.engine_check.dumping import MAP, dump_case, engine_facts, first_difference
from dih20.engine_check.judge import JUDGED, judge
from dih20.engine_check.stage_parity import dump_every_site
from dih20.errors import DumpUnusable
from dih20.parity.checkpoints import weights_hash
from dih20.parity.compare.replay import origins_by_replay
from dih20.parity.dump import DumpReader
from dih20.parity.model import Coverage, Finding, Measure, SiteKind
from dih20.parity.site_map import load_map
from tests.engine_check.conftest import HERE
from tests.engine_check.fake_engine import FakeModel, Method
from v41.checkpoint import CheckpointReader

pytestmark = pytest.mark.torch


LENGTHS = ["window exceeded", "selection beyond top-k", "candidate blocks dropped"]


@pytest.fixture(autouse=True)
def short_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case here has 70 tokens: what only longer ones reach is not asked of it."""

    def of_short(cases: Any) -> list[str]:
        return [name for name in not_covered(cases) if name not in LENGTHS]

    monkeypatch.setattr("dih20.engine_check.judge.not_covered", of_short)


def judged(driver: Any, context: Context) -> Outcome:
    assert dump_every_site(driver, context).pending
    return judge(context.work, context.checkpoint, context.values)


def test_a_sound_engine_has_no_divergence_and_every_site_of_the_map(
    driver: Any, context: Context
) -> None:
    outcome = judged(driver, context)
    assert outcome.passed, outcome.reasons
    case = outcome.numbers["cases"]["70 tokens"]
    assert (case["verdict"], case["not_covered"]) == ("incomplete", LENGTHS)
    assert outcome.numbers["not_recorded"] == []
    assert "logits" in case["not_compared"] and "embed" not in case["not_compared"]
    assert outcome.numbers["map_faults"] == {}
    wanted = {
        "attn.q",
        "attn.index_key",
        "attn.compressed_kv",
        "attn.context",
        "attn.window_kv",
        "attn.output",
        "ffn.output",
        "ffn.shared",
    }
    for phase in ("prefill", "decode"):
        assert {f"{leaf} {phase}" for leaf in wanted} <= set(case["sites"])
    assert case["sites"]["attn.chosen decode"]["tensors"] == 3 * 2
    assert case["sites"]["attn.window_kv decode"]["against_reference"] < 1e-9
    dump = DumpReader(context.work / "dump-0")
    assert [len(row) for row in dump.facts.positions] == [70, 1, 1]


def test_what_no_case_reaches_is_named(
    driver: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dih20.engine_check.judge.not_covered", not_covered)
    outcome = judged(driver, context)
    assert outcome.reasons == (f"not covered in any case: {', '.join(LENGTHS)}",)


def test_a_method_of_the_map_that_the_engine_does_not_call_in_one_phase_is_named(
    driver: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = FakeModel._attn_output

    def only_in_prefill(model: Any, layer: Any, x: Any, metadata: Any) -> Any:
        is_last = layer is model.model.layers[-1]
        skipped = is_last and not metadata.is_prompt
        return None if skipped else healthy(model, layer, x, metadata)

    monkeypatch.setattr(FakeModel, "_attn_output", only_in_prefill)
    outcome = judged(driver, context)
    assert outcome.numbers["map_faults"] == {}
    assert outcome.reasons[0] == "not recorded in any case: layers.5.attn.output in decode"


def test_a_site_counts_where_the_model_has_it_in_the_phases_of_its_rule(canary: Any) -> None:
    wanted = wanted_records(load_map(MAP), canary.config)
    assert ("layers.1.engram.streams", "prefill") in wanted
    assert ("layers.0.engram.streams", "prefill") not in wanted
    assert ("layers.5.attn.chosen", "decode") in wanted
    assert ("layers.5.attn.index_key", "decode") not in wanted  # it reads those of layer 3
    assert ("layers.0.attn.context", "decode") in wanted and ("embed", "decode") in wanted


def case(covered: tuple[str, ...], missing: tuple[str, ...]) -> Coverage:
    return Coverage(data_class="canary", covered=covered, missing=missing)


def test_one_case_that_reaches_it_is_enough() -> None:
    assert not_covered([case(("a",), ("b", "c")), case(("b",), ("a", "c"))]) == ["c"]


def test_a_context_that_is_wrong_in_decode_is_accused_there(driver: Any, context: Context) -> None:
    attention = driver.model.model.layers[1].self_attn
    attention._decode_attention = lambda x, *given: x * 0.5
    outcome = judged(driver, context)
    assert "DIVERGED first at layers.1.attn.context" in outcome.reasons[0]
    assert "decode" in outcome.reasons[0]


def test_a_selection_that_is_wrong_is_accused(driver: Any, context: Context) -> None:
    index = driver.model.model.layers[3].self_attn.index_attn
    index._topk_prefill = lambda ids, input_metadata: torch.where(ids > 40, -1, ids)
    outcome = judged(driver, context)
    assert "layers.3.attn.chosen" in outcome.reasons[0]


def otherwise(change: Callable[[Any], None]) -> Callable[..., Any]:
    """Change what was chosen, not of the empty pass; the rows from 64 on see more than 64 entries."""

    def changed(ids: Any, input_metadata: Any, kv_cache: Any = None) -> Any:
        ids = ids.clone()
        if len(input_metadata.positions) > 1 or int(input_metadata.positions[0]) > 64:
            change(ids)
        return ids

    return changed


def takes_another(row: int) -> Callable[[Any], None]:
    """Take an entry that was not chosen for one in the middle."""

    def change(ids: Any) -> None:
        left_out = set(range(row + 1)) - set(ids[row].tolist())
        ids[row, 30] = min(left_out)

    return change


def test_one_row_that_selects_otherwise_is_counted_and_no_divergence(
    driver: Any, context: Context
) -> None:
    index = driver.model.model.layers[3].self_attn.index_attn
    index._topk_prefill = otherwise(takes_another(68))
    outcome = judged(driver, context)
    assert outcome.passed, outcome.reasons
    found = outcome.numbers["cases"]["70 tokens"]["rounded"]["layers.3.attn.chosen"]
    assert found == {"rows": 72, "differ": 1, "beyond_rounding": 1, "impossible": 0}


def two_rows(ids: Any) -> None:
    for row in (67, 68):
        takes_another(row)(ids)


def too_few(ids: Any) -> None:
    ids[60, :10] = -1


def an_entry_of_the_future(ids: Any) -> None:
    ids[40, 30] = 41


@pytest.mark.parametrize("change", [two_rows, too_few, an_entry_of_the_future])
def test_more_rows_or_what_no_rounding_makes_is_a_divergence(
    change: Any, driver: Any, context: Context
) -> None:
    index = driver.model.model.layers[3].self_attn.index_attn
    index._topk_prefill = otherwise(change)
    outcome = judged(driver, context)
    assert "DIVERGED first at layers.3.attn.chosen" in outcome.reasons[0]


def test_an_entry_as_good_within_rounding_is_no_divergence_in_decode_another_one_is(
    driver: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = driver.model.model.layers[3].self_attn.index_attn
    size = 128

    def one_other(ids: Any) -> None:
        pages = [3, 1, 7]
        left_out = {pages[0] * size + entry for entry in range(71)} - set(ids[0].tolist())
        ids[0, 30] = min(left_out)

    index._topk_decode = otherwise(one_other)
    outcome = judged(driver, context)
    assert "DIVERGED first at layers.3.attn.chosen" in outcome.reasons[0]
    assert "decode" in outcome.reasons[0]
    monkeypatch.setattr("dih20.parity.compare.rounding.BF16_STEP", 10.0)  # everything is a near tie
    outcome = judge(context.work, context.checkpoint, context.values)
    assert outcome.passed, outcome.reasons
    found = outcome.numbers["cases"]["70 tokens"]["rounded"]["layers.3.attn.chosen"]
    assert found == {"rows": 72, "differ": 2, "beyond_rounding": 0, "impossible": 0}


def agreed(kind: SiteKind) -> Finding:
    return Finding(
        site="x", kind=kind, layer=3, layer_kind="", phase="prefill", step=0,
        measure=Measure(value=0.0, limit=0.0),
    )  # fmt: skip


def test_a_choice_in_which_both_runs_agree_and_the_reference_does_not_is_held_against_its_site() -> (
    None
):
    replayed = {(0, "x"): (Measure(value=0.1, limit=0.0), "")}
    kinds: tuple[SiteKind, ...] = ("selection", "expert_ids")
    for kind in kinds:
        (finding,) = origins_by_replay([agreed(kind)], replayed)
        assert finding.origin == "fresh"
    with pytest.raises(DumpUnusable, match="A and B agree"):
        origins_by_replay([agreed("dense")], replayed)


def keys_stored_as(change: Callable[[Any], Any]) -> Any:
    healthy = Method.store_index_kv

    def store(index_k_input: Any, index_k_cache: Any, input_metadata: Any) -> None:
        healthy(Method(), change(index_k_input.clone()), index_k_cache, input_metadata)

    return store


def one_neighbour(keys: Any) -> Any:
    """Move one FP4 value of each third key to its neighbour; none that the group's scale hangs on."""
    for row in range(0, len(keys), 3):
        scale = torch.exp2(torch.ceil(torch.log2(keys[row, :32].abs().max() / 6)))
        small = int((keys[row, :32].abs() < 3 * scale).nonzero()[0])
        keys[row, small] = (keys[row, small] / scale).round().add(0.5).mul(scale)
    return keys


def test_index_keys_off_by_one_fp4_step_are_counted_and_wrong_ones_a_divergence(
    driver: Any, context: Context
) -> None:
    index = driver.model.model.layers[1].self_attn.index_attn
    index.store_index_kv = keys_stored_as(one_neighbour)
    outcome = judged(driver, context)
    assert outcome.passed, outcome.reasons
    index.store_index_kv = keys_stored_as(lambda keys: keys.roll(1, dims=-1))
    outcome = judged(driver, context)
    assert "DIVERGED first at layers.1.attn.index_key" in outcome.reasons[0]


def entries_stored_as(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def forward_store_kv_cache(
        projected_kv: Any, kv_cache: Any, state_cache: Any, input_metadata: Any, **given: Any
    ) -> None:
        changed = change(projected_kv.clone()) if len(projected_kv) > 1 else projected_kv
        Method().forward_store_kv_cache(changed, kv_cache, state_cache, input_metadata, **given)

    return forward_store_kv_cache


def one_entry_in_four(entries: Any) -> Any:
    """Move one FP4 value of each fourth entry to its neighbour; none that a scale hangs on."""
    for row in range(0, len(entries), 4):
        groups = entries[row].view(-1, 16)
        scales = groups.abs().amax(dim=-1, keepdim=True) / 6
        group, place = ((groups.abs() / scales - 1).abs() < 0.01).nonzero()[0].tolist()
        groups[group, place] += scales[group, 0] / 2  # 1 becomes 1.5, and -1 becomes -0.5
    return entries


def wider_scales(entries: Any) -> Any:
    """Let the group of each entry that has the largest scale have the next larger one."""
    for entry in entries.view(len(entries), -1, 16):
        entry[int(entry.abs().amax(dim=-1).argmax())] *= 1.125
    return entries


def test_codes_of_compressed_entries_are_counted_in_the_pages_and_more_than_few_a_divergence(
    driver: Any, context: Context
) -> None:
    layers = driver.model.model.layers
    for layer, change in ((1, one_entry_in_four), (3, wider_scales)):
        layers[layer].self_attn.PackedWkv.forward_store_kv_cache = entries_stored_as(change)
    outcome = judged(driver, context)
    found = outcome.numbers["cases"]["70 tokens"]["rounded"]
    few, many = (found[f"layers.{layer}.attn.compressed_kv"] for layer in (1, 3))
    assert few["differ"] == 9 <= 0.001 * few["values"]
    assert many["differ"] > 0.001 * many["values"]
    assert "DIVERGED first at layers.3.attn.compressed_kv" in outcome.reasons[0]


def test_rules_that_do_not_fit_are_named_and_the_others_go_on(
    driver: Any, context: Context
) -> None:
    layers = driver.model.model.layers
    for layer in layers:
        layer.mlp.shared_forward = None
        layer.mlp.gate_forward = lambda ids, weights: {"ids": ids}
        layer.self_attn._wv_and_o_proj = lambda x: x[:, :100]
    outcome = judged(driver, context)
    faults = outcome.numbers["map_faults"]
    assert any("shared" in label and "no method" in why for label, why in faults.items())
    assert any("expert_ids" in label for label in faults)
    assert any("(1, 70, 100)" in why for why in faults.values())
    sites = outcome.numbers["cases"]["70 tokens"]["sites"]
    assert "attn.q prefill" in sites and "ffn.output decode" in sites
    assert any("entries of the map do not fit" in reason for reason in outcome.reasons)


def test_steps_of_no_request_are_left_out(driver: Any, context: Context) -> None:
    driver.skip_step = lambda: False  # then the empty pass of the engine is dumped as well
    dump_every_site(driver, context)
    assert len(DumpReader(context.work / "dump-0").facts.positions) == 4


def test_a_dump_that_cannot_be_read_is_named_and_is_no_pass(driver: Any, context: Context) -> None:
    dump_every_site(driver, context)
    (context.work / "dump-0" / "step-0001.rank-0.safetensors").write_bytes(b"cut")
    outcome = judge(context.work, context.checkpoint, context.values)
    assert not outcome.passed
    assert "70 tokens" in outcome.reasons[0]


def test_the_record_is_made_of_what_was_judged_and_missing_judgement_fails(
    driver: Any, context: Context
) -> None:
    record = compose(context.work, "e", HERE)
    assert record["verdict"] == "failed" and "not compared" in record["reason"]
    judged(driver, context)
    assert compose(context.work, "e", HERE)["verdict"] == "passed"
    (context.work / JUDGED).unlink()
    assert compose(context.work, "e", HERE)["verdict"] == "failed"


def test_the_first_difference_of_two_runs_is_in_causal_order(
    driver: Any, context: Context, tmp_path: Path
) -> None:
    reader = CheckpointReader(context.checkpoint)
    facts = engine_facts(reader.config, weights_hash(reader))
    _, prompt, golden = context.values.dumped[0]

    def dumped(name: str) -> Path:
        dump_case(driver, tmp_path / name, facts, prompt[:20], golden, statistics_only=True)
        return tmp_path / name

    healthy = dumped("healthy")
    assert first_difference(healthy, dumped("again")) is None
    changed: Callable[..., Any] = lambda x, *given: x * 0  # noqa: E731
    driver.model.model.layers[2].self_attn._prefill_attention = changed
    driver.model.model.layers[4].attn_norm_forward = lambda x: (None, x + 1, None)
    found = first_difference(healthy, dumped("changed"))
    assert found is not None
    assert (found["site"], found["phase"], found["rms"]) == (
        "layers.2.attn.context",
        "prefill",
        0.0,
    )
