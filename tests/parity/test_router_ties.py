"""An engine whose router takes the other of two experts that tie adds no error of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from dih20.parity.compare.limits import Limits
from dih20.parity.compare.replay import replay
from dih20.parity.dump import DumpReader
from dih20.parity.oracle import Oracle
from tests.parity.runs import CONFIG, IDS, WEIGHTS, Runs

pytestmark = pytest.mark.torch

GATE = "layers.2.ffn.gate"
IDS_SITE = "layers.2.ffn.expert_ids"


def weights(lead: float) -> dict[str, torch.Tensor]:
    """Give expert 1 the gate of expert 0 and a bias that is more by `lead`; both are taken or neither,
    but where they are the last taken and the first left out."""
    gate, bias = WEIGHTS[f"{GATE}.weight"].clone(), WEIGHTS[f"{GATE}.bias"].clone()
    gate[1], bias[1] = gate[0], bias[0] + lead
    return {**WEIGHTS, f"{GATE}.weight": gate, f"{GATE}.bias": bias}


def own_error(root: Path, lead: float, of_engine: Mapping[str, torch.Tensor]) -> Any:
    """Replay, by a reference in which expert 1 leads, an engine in which expert 0 does."""
    dump = DumpReader(Runs(root).run(weights=of_engine))
    oracle = Oracle(
        config=CONFIG,
        weights=weights(lead),
        compressed_ids=IDS,
        mode="trained",
        weights_hash="tiny",
    )
    return replay(dump, dump, oracle, Limits.between(dump.facts, dump.facts))[0, IDS_SITE][0]


def test_a_tie_is_no_error_of_the_site_a_lead_is(tmp_path: Path) -> None:
    tied = own_error(tmp_path / "tied", 4e-6, weights(-4e-6))
    assert tied.details["rows_tied"] == tied.details["rows_differ"] > 0
    assert not tied.exceeds
    led = own_error(tmp_path / "led", 1e-3, weights(-1e-3))
    assert led.details["rows_differ"] > 0 and led.details["rows_tied"] == 0
    assert led.exceeds
