"""Stage e: dumps through the map, map faults named one by one, the comparison on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.engine_check.composing import compose
from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.dumping import dump_case, engine_facts, first_difference
from dih20.engine_check.judge import JUDGED, judge
from dih20.engine_check.stage_parity import dump_every_site
from dih20.parity.checkpoints import weights_hash
from dih20.parity.dump import DumpReader
from tests.engine_check.conftest import HERE
from v41.checkpoint import CheckpointReader

pytestmark = pytest.mark.torch


def judged(driver: Any, context: Context) -> Outcome:
    assert dump_every_site(driver, context).pending
    return judge(context.work, context.checkpoint, context.values)


def test_a_sound_engine_has_no_divergence_and_every_site_of_the_map(
    driver: Any, context: Context
) -> None:
    outcome = judged(driver, context)
    assert outcome.passed, outcome.reasons
    case = outcome.numbers["cases"]["70 tokens"]
    assert case["verdict"] in ("ok", "incomplete")
    assert outcome.numbers["map_faults"] == {}
    wanted = {"attn.q", "attn.context", "attn.window_kv", "attn.output", "ffn.output", "ffn.shared"}
    for phase in ("prefill", "decode"):
        assert {f"{leaf} {phase}" for leaf in wanted} <= set(case["sites"])
    assert case["sites"]["attn.chosen decode"]["tensors"] == 3 * 2
    assert case["sites"]["attn.window_kv decode"]["against_reference"] < 1e-9
    dump = DumpReader(context.work / "dump-0")
    assert [len(row) for row in dump.facts.positions] == [70, 1, 1]


def test_a_context_that_is_wrong_in_decode_is_accused_there(driver: Any, context: Context) -> None:
    attention = driver.model.model.layers[1].self_attn
    attention._decode_attention = lambda x: x * 0.5
    outcome = judged(driver, context)
    assert "DIVERGED first at layers.1.attn.context" in outcome.reasons[0]
    assert "decode" in outcome.reasons[0]


def test_a_selection_that_is_wrong_is_accused(driver: Any, context: Context) -> None:
    index = driver.model.model.layers[3].self_attn.index_attn
    index._topk_prefill = lambda ids, input_metadata: torch.where(ids > 40, -1, ids)
    outcome = judged(driver, context)
    assert "layers.3.attn.chosen" in outcome.reasons[0]


def test_one_row_that_selects_otherwise_is_counted_and_no_divergence(
    driver: Any, context: Context
) -> None:
    index = driver.model.model.layers[3].self_attn.index_attn

    def one_row(ids: Any, input_metadata: Any) -> Any:
        ids = ids.clone()
        ids[60:61, :10] = -1  # no row of the empty pass
        return ids

    index._topk_prefill = one_row
    outcome = judged(driver, context)
    assert outcome.passed, outcome.reasons
    found = outcome.numbers["cases"]["70 tokens"]["other_selections"]
    assert found == {"layers.3.attn.chosen step 0": pytest.approx(1 / 70)}


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
    assert "entries of the map do not fit" in outcome.reasons[-1]


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
    changed: Callable[[Any], Any] = lambda x: x * 0  # noqa: E731
    driver.model.model.layers[2].self_attn._prefill_attention = changed
    driver.model.model.layers[4].attn_norm_forward = lambda x: (None, x + 1, None)
    found = first_difference(healthy, dumped("changed"))
    assert found is not None
    assert (found["site"], found["phase"], found["rms"]) == (
        "layers.2.attn.context",
        "prefill",
        0.0,
    )
