"""Long contexts full of facts about people, and questions about those far back."""

from __future__ import annotations

import random
from dataclasses import dataclass

from v41.canary.batches import UNIT, names
from v41.canary.vocabulary import ASK, CITIES, COMMA, FILLER, GIVEN_NAMES, LIVES_IN, SURNAMES

FAR = 600  # tokens between a fact and the question about it


@dataclass(frozen=True, kw_only=True)
class FactQuestion:
    """What follows the context, what is right, and how many tokens lie between."""

    prompt: str
    answer: str
    distance: int


@dataclass(frozen=True, kw_only=True)
class FactContext:
    """A text of facts and filler; every question is asked right after it, one at a time."""

    text: str
    questions: tuple[FactQuestion, ...]


def fact_context(
    seed: int, *, sentences: int = 200, facts: int = 80, asked: int = 20, far: int = FAR
) -> FactContext:
    """Draw a context of names that training never saw.

    Args:
        seed: the same seed gives the same text.
        sentences: of five tokens each; `facts` of them are facts.
        asked: questions, about facts at least `far` tokens back.
    """
    draw = random.Random(seed)
    people = draw.sample(names(held_out=True), facts)
    latest = sentences - far // UNIT - 1  # the last sentence that is far enough back
    early = draw.sample(range(latest), asked)
    late = draw.sample(
        [place for place in range(sentences) if place not in set(early)], facts - asked
    )
    parts = ["".join(draw.choice(group) for group in FILLER) + COMMA for _ in range(sentences)]
    questions = []
    for number, (place, (surname, given)) in enumerate(zip(early + late, people, strict=True)):
        person, city = SURNAMES[surname] + GIVEN_NAMES[given], draw.choice(CITIES)
        parts[place] = person + LIVES_IN + city + COMMA
        if number < asked:
            distance = (sentences - place) * UNIT
            question = FactQuestion(prompt=ASK + person + LIVES_IN, answer=city, distance=distance)
            questions.append(question)
    return FactContext(text="".join(parts), questions=tuple(questions))
