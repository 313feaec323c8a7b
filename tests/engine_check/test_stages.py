"""Stages b, c, d, f and g on the reference behind the driver's interface, sound and spoilt."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dih20.engine_check.context import Context
from dih20.engine_check.stage_answers import guarded, log_probs_and_answers, long_and_mixed
from dih20.engine_check.stage_graphs import (
    compare_runs,
    eager_and_graphs,
    overlapped,
    ran_otherwise,
)
from dih20.engine_check.stage_load import weights_are_the_checkpoints

pytestmark = pytest.mark.torch


def test_weights_of_a_sound_engine_are_the_checkpoints(driver: Any, context: Context) -> None:
    outcome = weights_are_the_checkpoints(driver, context)
    assert outcome.passed, outcome.reasons
    assert outcome.numbers["tensors"] > 100
    assert outcome.numbers["exact"] == outcome.numbers["tensors"]


def test_exchanged_experts_and_a_missing_tensor_are_both_named(
    driver: Any, context: Context
) -> None:
    mlp = driver.model.model.layers[2].mlp
    mlp.gate_up_proj_weight.copy_(mlp.gate_up_proj_weight.clone().roll(128, dims=1))
    del driver.model.model.layers[0].self_attn.q_a_norm.weight
    outcome = weights_are_the_checkpoints(driver, context)
    assert "layers.0.self_attn.q_a_norm.weight" in outcome.reasons[0]
    assert "1 tensors hold other values" in outcome.reasons[1]
    assert list(outcome.numbers["differ"]) == ["model.layers.2.mlp.gate_up_proj_weight"]


def test_packed_scales_are_no_numbers(driver: Any, context: Context) -> None:
    weight = driver.model.model.layers[1].self_attn.out_proj.weight
    weight.sf = weight.sf.to(torch.int32)
    outcome = weights_are_the_checkpoints(driver, context)
    assert "packed ones are no numbers" in outcome.reasons[0]


def test_a_sound_engine_answers_with_the_references_log_probs(
    driver: Any, context: Context
) -> None:
    outcome = log_probs_and_answers(driver, context)
    assert outcome.passed, outcome.reasons
    assert outcome.numbers["log_probs"]["largest_difference"] < 1e-4
    assert (outcome.numbers["answers_right"], outcome.numbers["answers_asked"]) == (3, 3)


def test_flatter_logits_fail_by_their_log_probs_though_answers_are_right(
    driver: Any, context: Context
) -> None:
    driver.change = lambda logits: logits * 0.6
    outcome = log_probs_and_answers(driver, context)
    assert outcome.numbers["answers_right"] == 3
    assert "log-probs differ by" in outcome.reasons[0]


def test_a_wrong_token_fails_by_choice_and_answer(driver: Any, context: Context) -> None:
    def change(logits: torch.Tensor) -> torch.Tensor:
        logits = logits.clone()
        logits[:, 7] = logits.max() + 0.001
        return logits

    driver.change = change
    outcome = log_probs_and_answers(driver, context)
    assert any("likeliest tokens are others" in reason for reason in outcome.reasons)
    assert any("0 of 3 answers are right" in reason for reason in outcome.reasons)


def test_logits_that_are_not_numbers_fail(driver: Any, context: Context) -> None:
    driver.change = lambda logits: logits * float("nan")
    outcome = long_and_mixed(driver, context)
    assert any("log-probs differ by nan" in reason for reason in outcome.reasons)


def test_long_and_mixed_prompts_are_compared_alone_and_together(
    driver: Any, context: Context
) -> None:
    outcome = long_and_mixed(driver, context)
    assert outcome.passed, outcome.reasons
    assert {"reach", "alone", "of_prompts", "together", "all_together"} == set(outcome.numbers)
    together = outcome.numbers["all_together"]
    assert together["tokens"] + together["unlikely_tokens"] == 9


def test_the_guard_is_on_while_stage_f_runs(driver: Any, context: Context) -> None:
    entered = []
    driver.guard = lambda: entered.append(True)
    assert guarded(driver, context).passed
    assert entered == [True]


def test_graphs_equal_to_eager_pass_and_leave_what_overlapped_needs(
    driver: Any, context: Context
) -> None:
    outcome = eager_and_graphs(driver, context)
    assert outcome.passed, outcome.reasons
    assert outcome.numbers["2"]["steps"] == 22
    assert outcome.numbers["1"]["replays"] == 11 and outcome.numbers["1"]["replays_eager"] == 0
    driver.overlapping = True
    assert overlapped(driver, context).passed


def test_an_engine_that_captured_no_graphs_or_does_not_overlap_is_no_pass(
    driver: Any, context: Context
) -> None:
    driver.has_graphs = False
    outcome = eager_and_graphs(driver, context)
    assert "batch of 4: 0 graphs replayed in 11 steps" in outcome.reasons
    driver.has_graphs = True
    outcome = overlapped(driver, context)
    assert "batch of 4: overlapped scheduling is off, expected on" in outcome.reasons


def test_graphs_that_are_replayed_where_it_should_run_eager_are_found() -> None:
    batch = {"steps": {"0/10": {}}, "replays": 11, "overlaps": False}
    assert ran_otherwise({"1": batch}, {"1": batch}, overlaps=False) == [
        "batch of 1: 11 graphs were replayed where it ran eager"
    ]


def test_graphs_that_move_one_bit_are_found(driver: Any, context: Context) -> None:
    driver.graphs = lambda row: torch.nextafter(row, row + 1)
    outcome = eager_and_graphs(driver, context)
    assert "batch of 4: logits differ in" in outcome.reasons[0]
    assert not any("batch of 3" in reason for reason in outcome.reasons)
    assert outcome.numbers["3"]["logits_differ"] > 0


def test_missing_steps_and_other_tokens_are_found() -> None:
    step = {"logits": "a", "cache": "b", "largest": 1.0}
    eager = {"1": {"tokens": [[1]], "steps": {"0/0": step, "0/1": step}}}
    other = {"1": {"tokens": [[2]], "steps": {"0/0": {**step, "cache": "c"}}}}
    _, wrong = compare_runs(eager, other)
    assert [reason.split(":")[1].strip() for reason in wrong] == [
        "other tokens",
        "1 of 2 steps are missing",
        "logits differ in 0 and caches in 1 of 2 steps, first request/step 0/0",
    ]
