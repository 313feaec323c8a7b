"""Dumps of a tiny random model, made once: a trusted run and its repetition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.parity.runs import Runs


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from threads, and lose much when the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(Path(tmp_path_factory.mktemp("parity-runs")))
