"""One canary, its reference values for a few short cases, and a driver over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.engine_check.cases import long_prompts, questions
from dih20.engine_check.context import Context
from dih20.engine_check.options import Options
from dih20.engine_check.reference import Follower, ReferenceValues
from v41.canary import FOLDER
from v41.canary.answering import Canary
from v41.canary.facts import fact_context
from v41.canary.questions import QUESTIONS

QUESTIONS_ASKED = 3
SOURCES = {"v41": "1", "tree": "2"}
HERE: dict[str, Any] = {"card": "a card", "commit": "c", "versions": {}, "sources": SOURCES}


@pytest.fixture(scope="session")
def canary() -> Canary:
    torch.set_num_threads(1)
    return Canary.load("sm90")


@pytest.fixture(scope="session")
def values(canary: Canary) -> ReferenceValues:
    follower = Follower(canary)
    context = fact_context(3, sentences=20, facts=6, asked=1, far=50)
    ids = tuple(canary.tokenizer.encode(context.text))
    with torch.no_grad():
        asked = questions(canary.tokenizer)[:QUESTIONS_ASKED]
        long = follower.follow(long_prompts(canary.tokenizer)[0])
        mixed = follower.follow(asked[1])
        return ReferenceValues(
            questions=tuple(follower.follow(case) for case in asked),
            answers=tuple(question.answer for question in QUESTIONS[:QUESTIONS_ASKED]),
            long=(long,),
            mixed=(mixed,),
            dumped=(("70 tokens", ids[:70], ids[70:73]),),
        )


@pytest.fixture
def driver(canary: Canary) -> Any:
    from tests.engine_check.fake_engine import FakeDriver

    return FakeDriver(canary, FOLDER)


@pytest.fixture
def make_context(tmp_path: Path, values: ReferenceValues) -> Callable[..., Context]:
    def make(**changed: Any) -> Context:
        given: dict[str, Any] = {
            "options": Options(work=str(tmp_path)),
            "work": tmp_path,
            "checkpoint": FOLDER,
            "values": values,
            "sources": SOURCES,
        }
        return Context(**{**given, **changed})

    return make


@pytest.fixture
def context(make_context: Callable[..., Context]) -> Context:
    return make_context()
