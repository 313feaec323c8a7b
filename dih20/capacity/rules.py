"""What the engine would refuse after the weights are loaded, and what this project refuses until it is proven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dih20.capacity.engine_defaults import (
    IMAGE_POOL,
    INDEX_MEMORY,
    NEXTN,
    Derived,
    derive,
)
from dih20.capacity.model_shape import TOKENS_PER_BLOCK, V41_FLASH, ModelShape
from dih20.config import EngineConfig
from dih20.errors import ConfigError
from dih20.serve.engines import deepinfer_engram as engram


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One setting that does not fit: refused, or only worth knowing before the start."""

    level: Literal["refused", "note"]
    key: str
    found: str
    expected: str


def require_startable(engine: EngineConfig, model: ModelShape = V41_FLASH) -> list[Problem]:
    """Give the notes; raise one ConfigError that lists everything the engine would refuse."""
    problems = problems_of(engine, model)
    refused = [problem for problem in problems if problem.level == "refused"]
    if refused:
        raise ConfigError(
            found="\n  ".join(f"configs/engine.yaml: {p.key}: {p.found}" for p in refused),
            expected="; ".join(p.expected for p in refused),
            remedy="correct the file, then look at `./inv capacity`",
        )
    return problems


def problems_of(engine: EngineConfig, model: ModelShape = V41_FLASH) -> list[Problem]:
    """Give every problem of an engine's settings with a model; reads nothing else."""
    try:
        derived = derive(engine)
    except ValueError as fault:
        return [_refused("environment", str(fault), "numbers as the engine reads them")]
    return [
        *_lengths(engine, model, derived),
        *_batch(engine, derived),
        *_experts(engine, model),
        *_engram(engine),
        *_pages(model),
        *_index_memory(model, derived),
        *_unproven(engine, model, derived),
    ]


def _lengths(engine: EngineConfig, model: ModelShape, derived: Derived) -> Iterator[Problem]:
    positions = (model.candidate_blocks - 1) * model.candidate_block + 1
    least = positions * model.candidate_ratio
    if derived.runtime_max_model_len < least:
        yield _refused(
            "max_model_len",
            f"the longest position would be {derived.runtime_max_model_len} "
            f"({engine.max_model_len} and {derived.runtime_max_model_len - engine.max_model_len} for drafts and "
            "scheduling), and the candidate layer fails its assert in the profile run",
            f"at least {least}: {model.candidate_blocks} blocks of {model.candidate_block} must exist; "
            "max_model_len 16384 is always enough",
        )


def _batch(engine: EngineConfig, derived: Derived) -> Iterator[Problem]:
    decoding = engine.max_num_seqs * (1 + derived.drafts)
    if derived.batched_tokens < decoding:
        yield _refused(
            "max_num_batched_tokens",
            f"{derived.batched_tokens}, and {engine.max_num_seqs} requests decode {decoding} tokens a step",
            f"at least {decoding}, or a smaller max_num_seqs",
        )


def _experts(engine: EngineConfig, model: ModelShape) -> Iterator[Problem]:
    for what, count in (("experts", model.experts), ("draft experts", model.draft_experts)):
        if count % engine.expert_parallel_size:
            yield _refused(
                "expert_parallel_size",
                f"{engine.expert_parallel_size} does not divide the {count} {what}",
                f"a divisor of {model.experts} and {model.draft_experts}",
            )


def _engram(engine: EngineConfig) -> Iterator[Problem]:
    if reason := engram.why_not(engine.environment, engine.expert_parallel_size):
        yield _refused(f"environment: {engram.ON_GPU}", reason, 'set it to "1", or leave it out')


def _pages(model: ModelShape) -> Iterator[Problem]:
    ratios = [2] * bool(model.ratio_two_sources) + [1] * bool(model.ratio_one_sources)
    for ratio in ratios:
        page = TOKENS_PER_BLOCK // ratio
        if page % model.candidate_block:
            yield _refused(
                "model",
                f"candidate blocks of {model.candidate_block} cross pages of {page} entries",
                "blocks of 8 or 16",
            )
    if model.index_heads > 32 or model.candidate_blocks % 8 or model.candidate_blocks > 4096:
        yield _refused(
            "model",
            f"{model.index_heads} index heads, {model.candidate_blocks} candidate blocks",
            "at most 32 heads; a multiple of 8, at most 4096 blocks",
        )
    if model.candidate_blocks * model.candidate_block < model.index_topk:
        yield _refused(
            "model",
            f"{model.candidate_blocks} candidate blocks of {model.candidate_block} hold fewer than top-k "
            f"{model.index_topk}",
            "as many candidate positions as are selected from them",
        )


def _index_memory(model: ModelShape, derived: Derived) -> Iterator[Problem]:
    row = derived.runtime_max_model_len * 2  # bf16 logits of the ratio-1 source
    if derived.index_memory_bytes < 8 * row:
        yield _refused(
            f"environment: {INDEX_MEMORY}",
            f"{derived.index_memory_bytes} bytes are fewer than 8 rows of {row}",
            f"at least {8 * row}",
        )


def _unproven(engine: EngineConfig, model: ModelShape, derived: Derived) -> Iterator[Problem]:
    if derived.drafts:
        given = "set to" if NEXTN in engine.environment else "not set, which means"
        yield _refused(
            f"environment: {NEXTN}",
            f"{given} {derived.drafts}: draft tokens have not been proven on SM90",
            'set it to "0" (docs/port-status.md says what would prove drafts)',
        )
    if derived.image_pool:
        size = derived.image_pool_gb * engine.expert_parallel_size
        yield Problem(
            level="note",
            key=f"environment: {IMAGE_POOL}",
            found=f"on: {size} GB of host memory are pinned, and image input is refused until it is proven",
            expected='"0"',
        )
    if engine.expert_parallel_size > 1:
        yield Problem(
            level="note",
            key="expert_parallel_size",
            found="over several GPUs experts and Engram rows travel through deep_ep: NCCL 2.32 or newer, and for "
            "Engram an RDMA card with GIN",
            expected="known before the start: docs/port-status.md, rows 13 and 26",
        )


def _refused(key: str, found: str, expected: str) -> Problem:
    return Problem(level="refused", key=key, found=found, expected=expected)
