"""The canary in an engine, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dih20.serve.engines.reference import ReferenceEngine
from tests.serve.engines.stand import started
from v41.canary import FOLDER
from v41.canary.tokenizer import Tokenizer


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads wait for each other longer than they work when other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER / "tokenizer.json")


@pytest.fixture(scope="session")
def canary_engine(tmp_path_factory: pytest.TempPathFactory) -> ReferenceEngine:
    return started(tmp_path_factory.mktemp("canary"))[0]


@pytest.fixture
def engine(canary_engine: ReferenceEngine) -> Iterator[ReferenceEngine]:
    """The canary's engine with nothing to do, before and after."""
    assert not canary_engine.has_work()
    yield canary_engine
    canary_engine.close()
