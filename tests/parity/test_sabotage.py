"""Broken on purpose, the tool names what was broken; unbroken, it accuses nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random

import pytest

from dih20.console import Console
from dih20.errors import TestsFailed, UsageError
from dih20.parity.diagnosis import NO_SIGNATURE
from dih20.parity.diagnosis.causes import TITLES
from dih20.parity.sabotage import attention_faults, canary, command
from dih20.parity.sabotage.catalogue import FAULTS, draw
from dih20.parity.sabotage.fault import Fault
from dih20.parity.sabotage.model_faults import PhaseTap
from dih20.parity.sabotage.suite import ATTEMPTS, MIN_CAUSES_RIGHT, Outcome, Row, Suite
from dih20.parity.sabotage.table import as_page
from tests.parity.sabotage_base import make_base

pytestmark = pytest.mark.torch

# One fault of each way to inject; `./inv sabotage` runs all of them on the canary.
FAST = (
    "all keys masked",
    "page stride ignored",
    "nibble order in the experts",
    "RoPE half-split on index keys",
    "candidates ignored",
    "shared gate clamped both sides",
    "pre mix not delayed",
    "ties in compressed entries",
    "noise",
)


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    folder = tmp_path_factory.mktemp("sabotage")
    return Suite(make_base(folder / "checkpoint"), folder / "dumps")


@pytest.mark.parametrize("fault", FAST)
def test_site_phase_and_cause_of_an_injected_fault_are_named(suite: Suite, fault: str) -> None:
    (row,) = suite.rows(2, [fault])
    assert (row.site_named, row.phase_named) == (row.site, row.phase)
    assert row.cause_named == row.cause


def test_a_run_without_a_fault_is_not_accused(suite: Suite) -> None:
    assert suite.accused_without_fault(1) == 0


def test_every_known_cause_has_a_fault_and_some_faults_have_no_known_cause(suite: Suite) -> None:
    causes = [draw(suite.base, 1, name).cause for name in FAULTS]
    assert set(causes) == {*TITLES, ""}
    assert sum(cause != "" for cause in causes) >= MIN_CAUSES_RIGHT
    assert causes.count("") >= 3


def test_a_seed_decides_where_and_how_strongly_faults_act(suite: Suite) -> None:
    first, again, other = ([_place(suite, seed, name) for name in FAULTS] for seed in (1, 1, 2))
    assert first == again
    assert sum(a != b for a, b in zip(first, other, strict=True)) >= 8


def _place(suite: Suite, seed: int, name: str) -> tuple[str, tuple[str, ...], str]:
    fault = draw(suite.base, seed, name)
    return fault.site, fault.phases, fault.detail


def test_a_fault_without_effect_where_it_was_drawn_is_drawn_again(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = Fault(
        cause="sink-missing", site="layers.0.attn.context", phases=("prefill",), detail="none",
        build=suite.base.reference,
    )  # fmt: skip
    drawn = FAULTS["sink missing"]
    injectors = iter((lambda base, random: healthy, drawn))
    monkeypatch.setitem(FAULTS, "sink missing", lambda *given: next(injectors)(*given))
    (row,) = suite.rows(2, ["sink missing"])
    assert row.idle_draws == ("layers.0.attn.context prefill",)
    assert row.site_right and row.cause_right


def row(**changes: object) -> Row:
    right = Row(
        fault="f", detail="d", site="layers.0.attn.q", phase="prefill", cause="sink-missing",
        site_named="layers.0.attn.q", phase_named="prefill", cause_named="sink-missing",
        also_named=(), idle_draws=(), error=0.1,
    )  # fmt: skip
    return dataclasses.replace(right, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"site_named": "layers.0.attn.context"}, "named layers.0.attn.context"),
        ({"phase_named": "decode"}, "in decode"),
        ({"site_named": "", "phase_named": ""}, "named nothing"),
        ({"cause": NO_SIGNATURE}, "has no signature"),
    ],
)
def test_a_wrong_row_fails_the_suite(changes: dict[str, object], said: str) -> None:
    outcome = Outcome(rows=(row(**changes),), accused_without_fault=(0, 0, 0))
    (failure,) = outcome.failures(whole=False)
    assert said in failure


def test_too_few_causes_and_accused_healthy_runs_fail_the_suite() -> None:
    rows = (row(),) * MIN_CAUSES_RIGHT
    assert Outcome(rows=rows, accused_without_fault=(0, 0, 0)).failures(whole=True) == []
    failures = Outcome(rows=rows[1:], accused_without_fault=(0, 2, 0)).failures(whole=True)
    assert failures == ["19 causes right, wanted 20", "fault-free run 2: 2 tensors accused"]


def test_the_task_keeps_its_dumps_and_fails_when_a_site_is_missed(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ui: Console
) -> None:
    monkeypatch.setattr(canary, "canary_base", lambda checkpoint: suite.base)
    monkeypatch.setattr(Suite, "accused_without_faults", lambda self: (0, 0, 0))
    folder = tmp_path / "kept"
    given = {"checkpoint": "", "seed": 2, "only": "sink missing", "write": False}
    evidence = command.run_sabotage(ui, keep=str(folder), **given)  # type: ignore[arg-type]
    assert evidence["totals"]["sites_right"] == 1
    assert (folder / "healthy").is_dir() and (folder / "sink-missing").is_dir()
    monkeypatch.setattr(Suite, "rows", lambda self, seed, only: iter([row(phase="decode")]))
    with pytest.raises(TestsFailed, match=r"named layers\.0\.attn\.q in prefill"):
        command.run_sabotage(ui, keep=str(tmp_path / "more"), **given)  # type: ignore[arg-type]


def test_two_faults_at_once_are_accused_by_the_first_of_them(suite: Suite) -> None:
    sink = attention_faults.SINK_MISSING(suite.base, Random(2))
    layer = int(sink.site.split(".")[1])
    later = f"layers.{layer}.ffn.norm"
    both = Fault(
        cause=sink.cause,
        site=sink.site,
        phases=sink.phases,
        detail="a missing sink, and a later norm doubled",
        build=lambda tap: sink.build(PhaseTap(tap, later, sink.phases, lambda x: 2.0 * x)),
    )
    verdict = suite.compare("both", both).verdict
    assert verdict.first is not None and verdict.first.site == sink.site
    assert [cause.name for cause in verdict.looks_like] == ["sink-missing"]


@pytest.mark.parametrize(("only", "write"), [("no such fault", False), ("sink", True)])
def test_the_task_refuses_unknown_names_and_partial_evidence(
    ui: Console, only: str, write: bool
) -> None:
    with pytest.raises(UsageError):
        command.run_sabotage(ui, checkpoint="", seed=1, only=only, keep="", write=write)


def test_evidence_of_a_checkpoint_that_changed_meanwhile_is_refused(suite: Suite) -> None:
    with pytest.raises(TestsFailed, match="changed while the suite ran"):
        command._check_unchanged(suite.base)  # its hash is a name, not that of its files


def test_the_committed_evidence_is_whole_and_right_and_shown_in_docs() -> None:
    evidence = json.loads(command.EVIDENCE.read_text(encoding="utf-8"))
    assert [fault["fault"] for fault in evidence["faults"]] == list(FAULTS)
    assert all(fault["site_right"] for fault in evidence["faults"])
    assert evidence["totals"]["known_causes_right"] >= MIN_CAUSES_RIGHT
    unknown = [fault for fault in evidence["faults"] if fault["cause"] == NO_SIGNATURE]
    assert unknown and all(fault["cause_named"] == NO_SIGNATURE for fault in unknown)
    assert evidence["fault_free_runs_accused"] == [0, 0, 0]
    assert command.PAGE.read_text(encoding="utf-8") == as_page(evidence)


def test_the_committed_evidence_is_of_the_committed_canary() -> None:
    evidence = json.loads(command.EVIDENCE.read_text(encoding="utf-8"))
    base = canary.canary_base()
    assert evidence["weights"] == base.oracle.weights_hash, "run `./inv sabotage --write`"
    assert evidence["data_class"] == "canary"
    for fault in evidence["faults"]:
        places = [
            draw(base, evidence["seed"], fault["fault"], attempt).site
            for attempt in range(ATTEMPTS)
        ]
        assert fault["site"] in places, fault["fault"]
