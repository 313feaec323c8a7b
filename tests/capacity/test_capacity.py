"""The port map's numbers, and every setting that must not reach the engine."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from dih20.capacity.engine_defaults import derive
from dih20.capacity.memory import (
    CARDS,
    GIB,
    SEEN_GIB,
    block_bytes,
    memory_of,
    state_bytes,
    weights_of,
)
from dih20.capacity.model_shape import V41_FLASH
from dih20.capacity.report import largest_batch
from dih20.capacity.rules import problems_of, require_startable
from dih20.config import EngineConfig, load_engine
from dih20.errors import ConfigError
from dih20.paths import REPOSITORY

NO_DRAFTS = {"DEEPINFER_USE_NEXTN_DECODE": "0"}


def engine(environment: dict[str, str] | None = None, **keys: Any) -> EngineConfig:
    return EngineConfig(environment=NO_DRAFTS if environment is None else environment, **keys)


def refused(given: EngineConfig) -> list[str]:
    return [problem.key for problem in problems_of(given) if problem.level == "refused"]


def test_a_cache_block_is_114048_bytes_and_a_state_slot_3128928() -> None:
    assert block_bytes(V41_FLASH) == 114_048
    assert state_bytes(V41_FLASH, derive(engine({}))) == 3_128_928
    assert state_bytes(V41_FLASH, derive(engine())) < 3_128_928


@pytest.mark.parametrize(
    ("environment", "length"),
    [
        ({}, 16384 + 3 * 5 + 1),
        ({"DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0"}, 16384 + 2 * 5),
        (NO_DRAFTS, 16385),
        ({**NO_DRAFTS, "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0"}, 16384),
    ],
)
def test_the_longest_position_follows_drafts_and_scheduling(
    environment: dict[str, str], length: int
) -> None:
    assert derive(engine(environment)).runtime_max_model_len == length


def test_sixteen_thousand_three_hundred_and_seventy_seven_positions_are_the_least() -> None:
    off = {**NO_DRAFTS, "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0"}
    assert refused(engine(off, max_model_len=16377)) == []
    assert refused(engine(off, max_model_len=16376)) == ["max_model_len"]
    assert refused(engine(NO_DRAFTS, max_model_len=16376)) == []


def test_experts_of_one_gpu_of_eight_are_63_gib_as_fp8() -> None:
    weights = weights_of(engine(), V41_FLASH)
    assert weights["experts"] / GIB == pytest.approx(63.3, abs=0.05)
    assert weights["experts"] / 1e9 == pytest.approx(68, abs=0.2)  # as the port map has it
    whole = weights_of(engine(expert_parallel_size=1), V41_FLASH)
    assert whole["experts"] == 8 * weights["experts"]
    assert whole["attention"] == weights["attention"]


def test_shapes_explain_what_was_seen_on_eight_h20_up_to_three_gib() -> None:
    explained = sum(weights_of(engine(), V41_FLASH).values())
    assert 2.5 < SEEN_GIB - explained / GIB < 3.5
    assert explained + memory_of(engine(), V41_FLASH).not_explained == int(SEEN_GIB * GIB)


def test_the_committed_settings_start_and_fit_on_141_gb() -> None:
    given = load_engine()
    assert require_startable(given) == [p for p in problems_of(given) if p.level == "note"]
    big = memory_of(given, V41_FLASH, CARDS["141"])
    assert big.fits
    assert big.cache_tokens > 20_000_000


def test_on_96_gb_the_batch_must_be_chunked() -> None:
    given = load_engine()
    assert not memory_of(given, V41_FLASH, CARDS["96"]).fits
    batch = largest_batch(given, V41_FLASH, CARDS["96"])
    assert 1024 <= batch < given.batched_tokens
    change = {"max_num_batched_tokens": batch, "chunked_prefill": True}
    assert memory_of(given.model_copy(update=change), V41_FLASH, CARDS["96"]).fits
    change["max_num_batched_tokens"] = 2 * batch
    assert not memory_of(given.model_copy(update=change), V41_FLASH, CARDS["96"]).fits


def test_more_requests_leave_fewer_cache_tokens() -> None:
    few, many = engine(max_num_seqs=64), engine(max_num_seqs=512)
    assert memory_of(few).cache_tokens > memory_of(many).cache_tokens


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (engine({}), "environment: DEEPINFER_USE_NEXTN_DECODE"),
        (engine(expert_parallel_size=7), "expert_parallel_size"),
        (
            engine(max_num_seqs=4096, max_num_batched_tokens=2048, chunked_prefill=True),
            "max_num_batched_tokens",
        ),
        (
            engine({**NO_DRAFTS, "DEEPINFER_INDEX_ATTN_MEMORY_LIMIT": "100000"}),
            "environment: DEEPINFER_INDEX_ATTN_MEMORY_LIMIT",
        ),
        (engine({**NO_DRAFTS, "DEEPINFER_MAX_BACKTRACKING_TOKENS": "many"}), "environment"),
    ],
)
def test_what_the_engine_would_refuse_late_is_refused_early(given: EngineConfig, key: str) -> None:
    assert key in refused(given)
    with pytest.raises(ConfigError, match=r"configs/engine\.yaml: ") as caught:
        require_startable(given)
    assert key in caught.value.found
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "change",
    [
        {"candidate_block": 24},
        {"index_heads": 64},
        {"candidate_blocks": 2044},
        {"candidate_blocks": 32},
    ],
)
def test_a_model_that_breaks_the_candidate_rules_is_refused(change: dict[str, int]) -> None:
    model = dataclasses.replace(V41_FLASH, **change)  # type: ignore[arg-type]
    assert "model" in [p.key for p in problems_of(engine(max_model_len=65536), model)]
    assert "model" not in [p.key for p in problems_of(engine(max_model_len=65536), V41_FLASH)]


def test_the_image_pool_is_told_and_not_refused() -> None:
    notes = [p for p in problems_of(engine()) if p.level == "note"]
    assert "64 GB of host memory are pinned" in notes[0].found
    off = engine({**NO_DRAFTS, "DEEPINFER_USE_MULTIMODAL_POOL": "0"})
    assert all("pinned" not in p.found for p in problems_of(off))


def test_the_task_prints_cards_as_json_and_refuses_a_wrong_card() -> None:
    command = [sys.executable, "-m", "invoke", "capacity", "--json", "--card"]
    done = subprocess.run(
        [*command, "141"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["result"]["cards"]["141 GB"]
    assert found["block_bytes"] == 114_048
    assert found["fits"] is True
    done = subprocess.run(
        [*command, "big"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
