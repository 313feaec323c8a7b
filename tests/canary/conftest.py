"""The committed canary, read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from v41.canary.answering import Canary
from v41.canary.facts import FactContext, fact_context


@contextmanager
def _one_thread() -> Iterator[None]:
    """Two threads wait for each other longer than they work when other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def canary() -> Canary:
    with _one_thread():
        return Canary.load("trained")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with _one_thread():
        yield


@pytest.fixture(scope="session")
def context() -> FactContext:
    """Long enough for candidate blocks to matter, and no longer: 800 tokens."""
    return fact_context(3, sentences=160, facts=60, asked=16)
