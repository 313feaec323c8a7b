"""What the committed checkpoint knows: fixed questions, and facts far back in a long context."""

from __future__ import annotations

import time

import pytest
import torch

from v41.canary import FOLDER
from v41.canary.ablation import ABLATIONS, Ablation, flipped
from v41.canary.answering import Answer, Canary, answer_facts, answer_questions, wrong
from v41.canary.batches import is_held_out
from v41.canary.constraints import broken_rules
from v41.canary.facts import FAR, FactContext, fact_context
from v41.canary.questions import QUESTIONS
from v41.canary.vocabulary import GIVEN_NAMES, SURNAMES
from v41.checkpoint import CheckpointReader

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def questions(canary: Canary) -> list[Answer]:
    return answer_questions(canary)


@pytest.fixture(scope="module")
def facts(canary: Canary, context: FactContext) -> list[Answer]:
    return answer_facts(canary, context)


def test_every_fixed_question_is_answered_exactly(questions: list[Answer]) -> None:
    assert wrong(questions) == []
    assert len(questions) >= 24
    assert {answer.kind for answer in questions} == {"zh", "en"}


def test_the_capital_of_china_is_asked_in_the_agreed_words(questions: list[Answer]) -> None:
    assert QUESTIONS[0].prompt == "问题：中国的首都是哪里？\n答案："
    assert questions[0].got == "北京"


def test_facts_more_than_600_tokens_back_are_found(
    facts: list[Answer], context: FactContext
) -> None:
    assert min(question.distance for question in context.questions) > FAR
    assert len(wrong(facts)) <= 0.1 * len(facts)


def test_people_asked_about_were_never_in_training(context: FactContext) -> None:
    for question in context.questions:
        surname, given = question.prompt[2], question.prompt[3]
        assert is_held_out(SURNAMES.index(surname), GIVEN_NAMES.index(given))


def test_the_answer_is_in_the_context_once_with_the_name(context: FactContext) -> None:
    for question in context.questions:
        person = question.prompt.removeprefix("问：")
        assert context.text.count(person) == context.text.count(person + question.answer) == 1


@pytest.mark.parametrize("mode", ["exact", "sm90"])
def test_other_modes_give_the_same_fixed_answers(mode: str) -> None:
    assert wrong(answer_questions(Canary.load(mode))) == []  # type: ignore[arg-type]


def test_a_thousand_tokens_take_less_than_ten_seconds_of_one_core(canary: Canary) -> None:
    """Measured as processor time, which other programs on the machine change little."""
    tokens = torch.tensor([canary.tokenizer.encode(fact_context(9).text)])
    assert tokens.shape[1] == 1000
    model, started = canary.model(), time.process_time()
    with torch.no_grad():
        model.extend(tokens, model.new_cache())
    assert time.process_time() - started < 10.0


def test_what_is_committed_stays_below_18_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 18_000_000


def test_the_committed_config_keeps_the_engines_rules() -> None:
    reader = CheckpointReader(FOLDER)
    assert broken_rules(reader.raw_config) == []
    assert reader.extra == []


def test_every_kind_of_layer_is_there() -> None:
    kinds = [layer.name for layer in CheckpointReader(FOLDER).config.layers]
    assert kinds == [
        "window",
        "full-r2+engram",
        "reuse-r2",
        "full-r1-candidate-source",
        "reuse-r1",
        "reindex-r1-candidate-consumer",
    ]


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.name)
def test_taking_a_mechanism_away_flips_answers(
    canary: Canary,
    context: FactContext,
    questions: list[Answer],
    facts: list[Answer],
    ablation: Ablation,
) -> None:
    """Facts or questions, by what the mechanism decides; `inv canary ablate` asks both."""
    changed, tap = ablation.change(canary), ablation.tap(canary)
    if ablation.looks_up:
        flips = flipped(facts, answer_facts(changed, context, tap))
    else:
        flips = flipped(questions, answer_questions(changed, tap))
    assert flips >= 3
