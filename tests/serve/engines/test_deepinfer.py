"""The DeepInfer adapter: its arguments, its refusals, and its loop over an engine that counts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.config import load_engine
from dih20.errors import ConfigError, EngineStartFailed
from dih20.patches.series import patches_dir
from dih20.serve.engines.deepinfer import DeepInferEngine, make_engine
from dih20.serve.engines.deepinfer_arguments import (
    DeepInferOptions,
    engine_arguments,
    rank_environment,
    sampling_arguments,
)
from dih20.serve.engines.deepinfer_engram import ON_GPU
from dih20.serve.engines.deepinfer_finding import log_probs_are_the_models
from dih20.serve.engines.deepinfer_symbols import ENGINE_ARGUMENTS, SAMPLING_ARGUMENTS
from dih20.serve.engines.interface import Emission, EngineContext, EngineInfo, EngineRequest
from dih20.serve.settings import Settings

pytestmark = pytest.mark.torch
FAKE = Path(__file__).parent / "fake_engine"


def context(rank: int = 0, ranks: int = 1, **options: Any) -> EngineContext:
    settings = Settings.model_validate(
        {"engine": "deepinfer", "model": "/models/v41", "engine_options": options}
    )
    return EngineContext(settings=settings, rank=rank, ranks=ranks, rendezvous=Path("/nowhere"))


def request(id: int, prompt: list[int], **values: Any) -> EngineRequest:
    given: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0} | values
    return EngineRequest(id=id, prompt=prompt, **given)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The counting engine under the real one's name, and a GPU that is said to be there."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    yield monkeypatch
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepinfer"]:
        del sys.modules[name]


@pytest.fixture
def started(importable: pytest.MonkeyPatch) -> tuple[DeepInferEngine, EngineInfo]:
    engine = make_engine(context(max_model_len=64, max_num_seqs=4))
    return engine, engine.start(lambda phase, line, fraction=None: None)


@pytest.fixture
def engine(started: tuple[DeepInferEngine, EngineInfo]) -> DeepInferEngine:
    return started[0]


def run(engine: DeepInferEngine, steps: int = 100) -> dict[int, list[Emission]]:
    heard: dict[int, list[Emission]] = {}
    while engine.has_work() and steps:
        steps -= 1
        for emission in engine.step():
            heard.setdefault(emission.id, []).append(emission)
    return heard


def said(emissions: list[Emission]) -> list[int]:
    return [token for each in emissions for token in each.tokens]


# what it is given


def test_configs_engine_yaml_is_what_the_engine_is_given() -> None:
    values = load_engine().model_dump()
    environment = values.pop("environment") | {ON_GPU: "1"}  # what is served has copies
    options = DeepInferOptions.model_validate(values)
    given = engine_arguments(context(ranks=options.expert_parallel_size), options, environment)
    assert set(given) == set(ENGINE_ARGUMENTS)
    assert (given["max_model_len"], given["max_num_seqs"]) == (16384, 256)
    assert given["model"] == "/models/v41"
    assert given["expert_parallel_size"] == 8


def test_every_gpu_has_a_copy_of_the_canarys_engram_tables() -> None:
    options = DeepInferOptions(expert_parallel_size=2)
    assert engine_arguments(context(ranks=2), options, {})["engram_parallel_size"] == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_copy_of_the_tables_lies_on_its_gpu_or_is_refused(ranks: int) -> None:
    options = DeepInferOptions(expert_parallel_size=ranks)
    with pytest.raises(ConfigError, match="host memory") as refused:
        engine_arguments(context(ranks=ranks), options, {ON_GPU: "0"})
    assert ON_GPU in refused.value.expected
    assert rank_environment(context(), {})[ON_GPU] == "1"


def test_ranks_of_one_host_need_no_network_card_that_gpus_drive() -> None:
    assert rank_environment(context(ranks=2), {})["EP_DISABLE_GIN"] == "1"
    assert rank_environment(context(ranks=2), {"EP_DISABLE_GIN": "0"})["EP_DISABLE_GIN"] == "0"


def test_sampling_is_asked_for_by_the_names_upstream_knows() -> None:
    given = sampling_arguments(request(1, [5], temperature=0.7, seed=9, logprobs=4))
    assert set(given) == set(SAMPLING_ARGUMENTS)
    assert (given["temperature"], given["seq_seed"], given["top_logprobs"]) == (0.7, 9, 4)


@pytest.mark.parametrize(
    ("options", "environment", "found"),
    [
        ({"expert_parallel_size": 8}, {}, "expert_parallel_size 8 with 1 ranks"),
        ({"max_num_batched_tokens": 8192}, {}, "max_num_batched_tokens 8192"),
        (
            {"max_num_batched_tokens": 1000, "chunked_prefill": True},
            {},
            "max_num_batched_tokens 1000",
        ),
        (
            {"max_num_batched_tokens": 100, "chunked_prefill": True, "max_num_seqs": 4},
            {"DEEPINFER_USE_NEXTN_DECODE": "0"},
            "max_num_batched_tokens 100",
        ),
    ],
)
def test_what_upstream_would_assert_is_refused_by_name(
    options: dict[str, Any], environment: dict[str, str], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        engine_arguments(context(), DeepInferOptions.model_validate(options), environment)


def test_without_draft_tokens_a_smaller_batch_will_do() -> None:
    options = DeepInferOptions(max_num_batched_tokens=1000, chunked_prefill=True)
    environment = {"DEEPINFER_USE_NEXTN_DECODE": "0"}
    assert engine_arguments(context(), options, environment)["max_num_batched_tokens"] == 1000


def test_the_environment_is_complete_and_what_was_set_wins() -> None:
    given = {"DEEPINFER_PREFILL_ATTEMPT_INTERVAL": "5", "CUDA_VISIBLE_DEVICES": "3,4"}
    wanted = rank_environment(context(rank=1, ranks=2), given, port=4000)
    assert wanted["DEEPINFER_PREFILL_ATTEMPT_INTERVAL"] == "5"
    assert wanted["DEEPINFER_USE_MULTIMODAL_POOL"] == "0"
    assert wanted["CUDA_VISIBLE_DEVICES"] == "4"
    assert wanted["MASTER_PORT"] == "4050", "upstream listens 50 below"
    assert rank_environment(context(rank=2, ranks=3), {})["CUDA_VISIBLE_DEVICES"] == "2"
    assert rank_environment(context(), {"MASTER_PORT": "7"}, port=1)["MASTER_PORT"] == "7"


@pytest.mark.parametrize(("visible", "found"), [("GPU-8f2c", "GPU-8f2c"), ("0", "names 1 GPUs")])
def test_gpus_that_upstream_cannot_use_are_refused(visible: str, found: str) -> None:
    with pytest.raises(EngineStartFailed, match=found):
        rank_environment(context(ranks=2), {"CUDA_VISIBLE_DEVICES": visible})


# what it refuses


def test_without_the_package_it_says_where_to_serve() -> None:
    with pytest.raises(EngineStartFailed, match="cannot be imported") as refused:
        make_engine(context()).start(lambda phase, line, fraction=None: None)
    assert "inv deploy" in refused.value.remedy


@pytest.mark.parametrize(
    ("module", "name", "value", "found"),
    [
        ("deepinfer", "__version__", "0.2.0", "deepinfer 0.2.0"),
        ("torch.cuda", "device_count", lambda: 0, "no GPU"),
    ],
)
def test_another_version_or_no_gpu_is_refused_before_anything_is_loaded(
    module: str, name: str, value: Any, found: str, importable: pytest.MonkeyPatch
) -> None:
    importable.setattr(f"{module}.{name}", value)
    with pytest.raises(EngineStartFailed, match=found):
        make_engine(context()).start(lambda phase, line, fraction=None: None)
    assert "deepinfer.engine.llm_engine" not in sys.modules


def test_a_tree_with_moved_names_is_refused_with_the_first_of_them(
    importable: pytest.MonkeyPatch,
) -> None:
    path = "dih20.serve.engines.deepinfer_symbols.complaints"
    importable.setattr(path, lambda package: ["engine/llm_engine.py: LLMEngine.step: gone"])
    with pytest.raises(EngineStartFailed, match=r"LLMEngine\.step: gone"):
        make_engine(context()).start(lambda phase, line, fraction=None: None)


def test_the_engines_own_refusal_is_passed_on(importable: pytest.MonkeyPatch) -> None:
    engine = make_engine(context(gpu_memory_utilization=0.05))
    with pytest.raises(EngineStartFailed, match="No available memory"):
        engine.start(lambda phase, line, fraction=None: None)


# its loop


def test_a_started_engine_says_what_it_can(started: tuple[DeepInferEngine, EngineInfo]) -> None:
    info = started[1]
    assert (info.vocab_size, info.max_model_len, info.max_num_seqs) == (1000, 64, 4)
    assert info.end_token_ids == (99,)
    assert info.details["log-probs"] == "AFTER temperature", "the tree here has no patchset"


def test_it_says_when_log_probs_are_taken_before_temperature(tmp_path: Path) -> None:
    layers = tmp_path / "model_executor" / "layers"
    layers.mkdir(parents=True)
    assert not log_probs_are_the_models(tmp_path)
    code = patches_dir() / "sm90" / "P20-logprobs-before-temperature" / "model_log_probs.py"
    shutil.copy(code, layers / "sampler_utils.py")
    assert log_probs_are_the_models(tmp_path)


def test_requests_join_between_steps_and_the_last_token_is_fetched(engine: DeepInferEngine) -> None:
    engine.add(request(1, [5, 6], logprobs=2))
    first = run(engine, steps=2)
    engine.add(request(2, [40], max_tokens=2))
    rest = run(engine)
    emissions = first[1] + rest[1]
    assert said(emissions) == [7, 8, 9]
    assert [each.finish for each in emissions] == [None, None, "length"]
    assert emissions[0].logprobs == [-0.07]
    assert emissions[0].top == [[(0, -0.0), (1, -1.0)]]
    assert said(rest[2]) == [41, 42]
    assert not rest[2][0].logprobs
    assert not engine.has_work()
    assert engine._engine.calls[-1] == "flush"


def test_accepted_drafts_come_as_one_emission(engine: DeepInferEngine) -> None:
    engine.add(request(1, [15], max_tokens=5, logprobs=0))
    heard = run(engine)[1]
    assert [list(each.tokens) for each in heard] == [[16, 17], [18, 19], [20]]
    assert [len(each.logprobs) for each in heard] == [2, 2, 1]
    assert heard[-1].finish == "length"


def test_a_stop_token_ends_the_answer_there_and_the_engines_request(
    engine: DeepInferEngine,
) -> None:
    engine.add(request(1, [15], max_tokens=50, stop_token_ids=(18,)))
    heard = run(engine)[1]
    assert said(heard) == [16, 17, 18], "not the 19 that came in the same step"
    assert heard[-1].finish == "stop"
    assert engine._engine.aborted == ["1"]


def test_the_end_token_is_the_engines_own_matter(engine: DeepInferEngine) -> None:
    engine.add(request(1, [96], max_tokens=9))
    engine.add(request(2, [96], max_tokens=5, ignore_eos=True))
    heard = run(engine)
    assert (said(heard[1])[-1], heard[1][-1].finish) == (99, "stop")
    assert (said(heard[2]), heard[2][-1].finish) == ([97, 98, 99, 100, 101], "length")


def test_a_cancelled_request_is_aborted_and_silent(engine: DeepInferEngine) -> None:
    engine.add(request(1, [5], max_tokens=50))
    engine.add(request(2, [50], max_tokens=4))
    run(engine, steps=2)
    engine.cancel(1)
    engine.cancel(77)
    assert set(run(engine)) == {2}
    assert engine._engine.aborted == ["1"]


@pytest.mark.parametrize(
    ("prompt", "values", "told"),
    [
        ([13], {}, "longer than the engine's limit"),
        ([14], {}, "dropped the request"),
        ([5], {"logprobs": 5000}, "top_logprobs must be in"),
        ([5] * 64, {}, "room for 64"),
        ([], {}, "empty"),
    ],
)
def test_a_request_the_engine_will_not_run_gets_its_reason_and_no_token(
    prompt: list[int], values: dict[str, Any], told: str, engine: DeepInferEngine
) -> None:
    engine.add(request(1, prompt, **values))
    (only,) = run(engine)[1]
    assert only.finish == "error"
    assert told in only.message
    assert not only.tokens
    assert not engine.has_work()


def test_a_rank_without_requests_still_steps_when_others_have_some(
    engine: DeepInferEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.serve.engines.interface import Agreed

    class OthersWork:
        def agree(self, work: bool, wakes: int) -> Agreed:
            return Agreed(work=True, wakes=wakes)

    monkeypatch.setattr(engine, "lockstep", OthersWork)
    assert engine.step() == []
    assert engine._engine.calls == ["step"]


def test_closing_closes_the_engine(engine: DeepInferEngine) -> None:
    engine.close()
    assert engine._engine.calls == ["close"]
