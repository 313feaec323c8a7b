"""Where Engram's tables lie: counted by one rule, which the server has too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.capacity.engine_defaults import derive
from dih20.capacity.memory import CARDS, GIB, memory_of
from dih20.capacity.model_shape import V41_FLASH
from dih20.capacity.rules import problems_of
from dih20.config import EngineConfig, load_engine
from dih20.errors import ConfigError
from dih20.serve.engines.deepinfer_arguments import DeepInferOptions, engine_arguments
from dih20.serve.engines.deepinfer_engram import ON_GPU
from dih20.serve.engines.interface import EngineContext
from dih20.serve.settings import Settings

CHUNKED = {"max_num_batched_tokens": 4096, "chunked_prefill": True}


def engine(ranks: int, place: str | None, **keys: Any) -> EngineConfig:
    environment = {"DEEPINFER_USE_NEXTN_DECODE": "0"} | ({ON_GPU: place} if place else {})
    return EngineConfig(environment=environment, expert_parallel_size=ranks, **keys)


def engram_gib(given: EngineConfig) -> float:
    weights = memory_of(given, V41_FLASH).weights
    return (
        sum(weights[kind] for kind in ("engram tables", "engram scales") if kind in weights) / GIB
    )


def server_refuses(given: EngineConfig) -> bool:
    """Whether the server's adapter says no to the place of the tables."""
    options = DeepInferOptions.model_validate(given.model_dump(exclude={"environment"}))
    settings = Settings(engine="deepinfer", model=Path("/models/v41"))
    context = EngineContext(settings=settings, rank=0, ranks=1, rendezvous=Path("/nowhere"))
    try:
        engine_arguments(context, options, given.environment)
    except ConfigError as refused:
        assert ON_GPU in refused.found
        return True
    return False


def test_the_committed_settings_say_where_and_eight_96_gb_gpus_hold_no_tables() -> None:
    given = load_engine()
    assert ON_GPU in given.environment
    assert not derive(given).engram_on_gpu
    assert memory_of(engine(8, "0", **CHUNKED), V41_FLASH, CARDS["96"]).fits
    assert not memory_of(engine(8, "1", **CHUNKED), V41_FLASH, CARDS["96"]).fits


def test_a_row_is_264_bytes_of_which_8_are_on_the_gpu_in_any_case() -> None:
    assert engram_gib(engine(8, "1")) == pytest.approx(768_022_850 * 264 / 8 / GIB, abs=1e-6)
    assert engram_gib(engine(8, "0")) == pytest.approx(768_022_850 * 8 / 8 / GIB, abs=1e-6)
    arriving = memory_of(engine(8, "0"), V41_FLASH).weights["engram rows that arrive"]
    assert arriving == 2 * 16384 * 24 * 256
    assert "engram rows that arrive" not in memory_of(engine(1, None), V41_FLASH).weights


def test_not_set_it_is_the_gpu_for_one_rank_and_upstreams_host_memory_for_more() -> None:
    assert derive(engine(1, None)).engram_on_gpu
    assert not derive(engine(2, None)).engram_on_gpu
    assert engram_gib(engine(1, None)) == pytest.approx(188.8, abs=0.1)


@pytest.mark.parametrize("place", ["0", "false", "1", None])
def test_one_rank_is_refused_host_memory_here_as_in_the_server(place: str | None) -> None:
    given = engine(1, place)
    found = [p for p in problems_of(given) if ON_GPU in p.key]
    assert (len(found) == 1) == (place in ("0", "false")) == server_refuses(given)
    assert all(p.level == "refused" and "host memory" in p.found for p in found)


def test_several_ranks_may_have_them_in_either_place() -> None:
    for place in ("0", "1"):
        assert not [p for p in problems_of(engine(8, place)) if p.level == "refused"]
