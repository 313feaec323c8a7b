"""The reference engine on the committed canary."""

from __future__ import annotations

import gc
import shutil
import time
import weakref
from pathlib import Path

import pytest
import torch

from dih20.errors import ConfigError, EngineStartFailed
from dih20.serve.engines.interface import EngineRequest
from dih20.serve.engines.reference import ReferenceEngine, make_engine
from tests.serve.engines.stand import context, greedy, log_probs, run, said, started
from v41.canary import FOLDER
from v41.canary.answering import Canary
from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer

pytestmark = pytest.mark.torch
END = 1


@pytest.fixture(scope="module")
def questions(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(question.prompt) for question in QUESTIONS]


def by_v41(prompt: list[int], canary: Canary) -> tuple[list[int], list[float]]:
    """Decode one prompt with the model alone, without any engine."""
    model, tokens, values = canary.model(), list[int](), list[float]()
    cache, rows = model.new_cache(), torch.tensor([prompt])
    with torch.inference_mode():
        while not tokens or tokens[-1] != END:
            best = torch.log_softmax(model.extend(rows, cache)[0, -1], dim=-1).max(dim=-1)
            tokens.append(int(best.indices))
            values.append(float(best.values))
            rows = best.indices.view(1, 1)
    return tokens, values


def test_all_32_questions_asked_at_once_get_v41s_own_answers_bit_for_bit(
    engine: ReferenceEngine, tokenizer: Tokenizer, questions: list[list[int]]
) -> None:
    canary = Canary.load()
    for id, prompt in enumerate(questions):
        engine.add(greedy(id, prompt))
    heard = run(engine)
    for id, question in enumerate(QUESTIONS):
        assert tokenizer.decode(said(heard[id])[:-1]) == question.answer
        assert heard[id][-1].finish == "stop"
        assert [each.finish for each in heard[id][:-1]] == [None] * (len(heard[id]) - 1)
    for id in (0, 11, 31):
        tokens, values = by_v41(questions[id], canary)
        assert said(heard[id]) == tokens
        assert log_probs(heard[id]) == values


def test_the_first_token_comes_within_two_seconds(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    began = time.process_time()
    engine.add(greedy(0, questions[0]))
    heard = run(engine, steps=1)
    assert len(said(heard[0])) == 1
    assert time.process_time() - began < 2.0


def test_a_request_joins_and_leaves_while_another_goes_on(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    engine.add(greedy(0, questions[19], ignore_eos=True, max_tokens=12))
    assert list(run(engine, steps=4)) == [0]
    engine.add(greedy(1, questions[0]))
    order = []
    while engine.has_work():
        order += [(each.id, each.finish) for each in engine.step()]
    ended = order.index((1, "stop"))
    assert {id for id, _ in order[: ended - 1]} == {0, 1}
    assert order[-1] == (0, "length")


def test_a_long_prompt_holds_others_up_for_one_chunk_at_a_time(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    engine.add(greedy(0, questions[0], ignore_eos=True, max_tokens=20))
    run(engine, steps=1)
    engine.add(greedy(1, [7] * 300, max_tokens=1))
    order = []
    while engine.has_work():
        emissions = engine.step()
        order.append(emissions[0].id if emissions else None)
    chunks = -(-300 // 64)
    read = order[: order.index(1) + 1]
    assert read.count(0) >= chunks - 1, f"one token between two chunks: {read}"
    assert read.count(None) == chunks - 1, f"the other steps say nothing: {read}"


def test_chunks_of_a_prompt_give_what_the_whole_prompt_gives(
    tmp_path: Path, engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    small, _ = started(tmp_path, engine_options={"prefill_tokens": 5})
    for each in (small, engine):
        each.add(greedy(0, questions[0]))
    chunked, whole = run(small)[0], run(engine)[0]
    assert said(chunked) == said(whole)
    assert log_probs(chunked) == pytest.approx(log_probs(whole), abs=1e-3)


def test_cancelling_frees_the_cache_and_nothing_more_is_said(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    for id in (0, 1):
        engine.add(greedy(id, questions[id], ignore_eos=True, max_tokens=100))
    engine.add(greedy(2, [10**9]))  # refused at the next step
    run(engine, steps=4)
    caches = {each.request.id: weakref.ref(each.cache) for each in engine._running if each.cache}
    engine.cancel(0)
    engine.cancel(12345)
    gc.collect()
    assert caches[0]() is None
    assert caches[1]() is not None
    assert set(run(engine, steps=6)) == {1}
    engine.cancel(1)
    assert not engine.has_work()


def test_cancelling_before_the_first_step_takes_the_request_back(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    engine.add(greedy(0, questions[0]))
    engine.add(greedy(1, []))
    engine.cancel(0)
    engine.cancel(1)
    assert not engine.has_work()


def test_one_answer_does_not_depend_on_who_else_asks(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    drawn = EngineRequest(
        id=0,
        prompt=questions[3],
        max_tokens=6,
        temperature=1.5,
        seed=7,
        logprobs=2,
        ignore_eos=True,
    )
    engine.add(drawn)
    alone = run(engine)[0]
    engine.add(drawn)
    for id in range(1, 5):
        engine.add(greedy(id, questions[id]))
    together = run(engine)[0]
    assert said(together) == said(alone)
    assert log_probs(together) == log_probs(alone)
    assert [each.top for each in together] == [each.top for each in alone]


def test_an_answer_ends_at_the_limit_of_tokens_or_at_a_stop_token(
    engine: ReferenceEngine, tokenizer: Tokenizer, questions: list[list[int]]
) -> None:
    engine.add(greedy(0, questions[19], max_tokens=2))
    second = tokenizer.encode(QUESTIONS[19].answer)[1]
    engine.add(greedy(1, questions[19], stop_token_ids=[second]))
    engine.add(greedy(2, questions[0], ignore_eos=True, max_tokens=5))
    heard = run(engine)
    assert (len(said(heard[0])), heard[0][-1].finish) == (2, "length")
    assert (len(said(heard[1])), heard[1][-1].finish) == (2, "stop")
    assert said(heard[1])[-1] == second
    assert END in said(heard[2])[:-1]
    assert (len(said(heard[2])), heard[2][-1].finish) == (5, "length")


def test_prompt_and_answer_together_stay_within_the_longest_length(tmp_path: Path) -> None:
    engine, info = started(tmp_path, limits={"max_model_len": 16})
    assert info.max_model_len == 16
    engine.add(greedy(0, [7] * 13, ignore_eos=True, max_tokens=50))
    engine.add(greedy(1, [7] * 16))
    heard = run(engine)
    assert (len(said(heard[0])), heard[0][-1].finish) == (3, "length")
    assert heard[1][0].finish == "error"
    assert "16 tokens" in heard[1][0].message


def test_more_requests_than_places_wait_their_turn(
    tmp_path: Path, questions: list[list[int]]
) -> None:
    engine, info = started(tmp_path, engine_options={"max_num_seqs": 2})
    assert info.max_num_seqs == 2
    for id in range(4):
        engine.add(greedy(id, questions[id]))
    running = set()
    heard = dict[int, str | None]()
    while engine.has_work():
        for each in engine.step():
            heard[each.id] = each.finish
        running.add(len(engine._running))
    assert max(running) == 2
    assert heard == dict.fromkeys(range(4), "stop")


def test_log_probs_come_only_when_asked_for(
    engine: ReferenceEngine, questions: list[list[int]]
) -> None:
    engine.add(greedy(0, questions[0], logprobs=None))
    engine.add(greedy(1, questions[0], logprobs=3))
    heard = run(engine)
    assert all(not each.logprobs and not each.top for each in heard[0])
    for each in heard[1]:
        values = [value for _, value in each.top[0]]
        assert each.top[0][0] == (each.tokens[0], each.logprobs[0])
        assert values == sorted(values, reverse=True)
        assert len(values) == 3


def test_a_model_whose_logits_are_nan_says_so_and_gives_no_token(
    engine: ReferenceEngine, questions: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine._model.extend
    monkeypatch.setattr(engine._model, "extend", lambda *given: real(*given) * float("nan"))
    engine.add(greedy(0, questions[0]))
    engine.add(greedy(1, questions[0], temperature=1.0))
    for emissions in run(engine).values():
        assert said(emissions) == []
        assert emissions[-1].finish == "error"
        assert "not numbers" in emissions[-1].message


@pytest.mark.parametrize("mode", ["exact", "sm90"])
def test_the_other_numeric_modes_answer_right(
    mode: str, tmp_path: Path, tokenizer: Tokenizer, questions: list[list[int]]
) -> None:
    engine, info = started(tmp_path, engine_options={"mode": mode})
    assert info.details["numerics"] == mode
    engine.add(greedy(0, questions[0]))
    assert tokenizer.decode(said(run(engine)[0])[:-1]) == QUESTIONS[0].answer


def test_loading_reports_its_progress(tmp_path: Path) -> None:
    engine = make_engine(context(tmp_path))
    heard: list[tuple[str, float | None]] = []
    info = engine.start(lambda phase, line, fraction=None: heard.append((phase, fraction)))
    fractions = [fraction for phase, fraction in heard if phase == "loading"]
    assert len(fractions) > 5
    assert fractions == sorted(fractions, key=lambda each: each or 0.0)
    assert (info.vocab_size, info.max_model_len, info.end_token_ids) == (768, 4096, (END,))


def test_an_option_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="thread") as refused:
        make_engine(context(tmp_path, engine_options={"thread": 2}))
    assert "threads" in refused.value.expected


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model-00002-of-00002"])
def test_a_checkpoint_that_is_not_whole_is_refused_in_three_parts(
    missing: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(FOLDER, folder)
    next(path for path in folder.iterdir() if path.name.startswith(missing)).unlink()
    with pytest.raises(EngineStartFailed, match=missing):
        started(tmp_path, model=str(folder))


def test_another_folder_of_the_format_is_served_too(
    tmp_path: Path, tokenizer: Tokenizer, questions: list[list[int]]
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(FOLDER, folder)
    engine, _ = started(tmp_path, model=str(folder))
    engine.add(greedy(0, questions[0]))
    assert tokenizer.decode(said(run(engine)[0])[:-1]) == QUESTIONS[0].answer


def test_engrams_token_map_is_the_one_v41_computes(engine: ReferenceEngine) -> None:
    ours = engine._model._hashes[1].compressed_ids
    assert torch.equal(ours, Canary.load().compressed)
