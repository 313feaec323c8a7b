"""The order of stages, what survives a death, what is not repeated, and what is killed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.engine_check import __main__ as program
from dih20.engine_check import here, launching, processes, reference, results
from dih20.engine_check.canary_folder import ensure_checkpoint
from dih20.engine_check.composing import compose
from dih20.engine_check.hypotheses import HYPOTHESES
from dih20.engine_check.options import Options
from dih20.engine_check.running import Check
from dih20.errors import TestsFailed, UsageError
from dih20.paths import REPOSITORY
from tests.engine_check.conftest import HERE
from v41.canary import FOLDER

pytestmark = pytest.mark.torch
FAULTS = [each.name for each in HYPOTHESES]
ALONE = [each.name for each in HYPOTHESES if each.may_stop]
SAFE = [name for name in FAULTS if name not in ALONE]
EAGER = "b-f,h"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a check with workers that do as the plan says; give records by letter."""
    worker = Path(__file__).with_name("fake_worker.py")
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, str(worker)))
    monkeypatch.setattr(reference, "load", lambda path: None)
    monkeypatch.setattr(launching, "START_S", 3000)
    monkeypatch.setenv("FAKE_FAULTS", json.dumps(FAULTS))
    monkeypatch.setenv("FAKE_ALONE", json.dumps(ALONE))
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)

    def run(plan: dict[str, str] | None = None, sources: Any = None, **options: Any) -> Any:
        found = HERE | {"sources": sources or HERE["sources"]}
        monkeypatch.setattr(here, "facts", lambda tree: found)
        monkeypatch.setenv("FAKE_PLAN", json.dumps(plan or {}))
        monkeypatch.setenv("FAKE_HERE", json.dumps(found))
        given = Options(**{"stage": EAGER, "work": str(tmp_path), **options})
        records = Check(given, lambda line: None).run()
        return {record["stage"]: record for record in records}

    return run


def acts(work: Path) -> list[str]:
    path = work / "acts.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def verdicts(records: dict[str, Any]) -> dict[str, str]:
    return {letter: record["verdict"] for letter, record in records.items()}


def test_stages_that_agree_in_their_settings_share_one_engine(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check()
    assert set(verdicts(records).values()) == {"passed"}
    done = acts(tmp_path)
    assert done.count("eager start") == 1 + len(
        ALONE
    )  # those that may end an engine have their own
    assert done[:2] == ["eager start", "eager b"]  # the others start when the first one has
    assert [done.count(f"eager {letter}") for letter in "bcdef"] == [1] * 5
    assert len(records["h"]["numbers"]["hypotheses"]) == len(FAULTS)


def test_a_passed_stage_is_repeated_only_with_other_sources_or_when_told(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    check(stage="b,c")
    acts(tmp_path)
    check(stage="b,c")
    assert acts(tmp_path) == []
    check(stage="c", again=True)
    assert acts(tmp_path) == ["eager start", "eager c"]
    records = check(stage="b,c", sources={"v41": "another", "tree": "2"})
    assert acts(tmp_path) == ["eager start", "eager b", "eager c"]
    assert records["b"]["sources"]["v41"] == "another"


def test_a_death_loses_no_earlier_record_and_later_stages_get_a_new_engine(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({"d": "die"})
    assert verdicts(records) == {
        "b": "passed", "c": "passed", "d": "died", "e": "passed", "f": "passed", "h": "passed",
    }  # fmt: skip
    assert "a fault in d" in records["d"]["reason"]
    assert acts(tmp_path).count("eager start") == 2 + len(ALONE)


def test_a_stage_over_its_limit_is_killed_and_the_rest_go_on(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({"c": "hang"}, stage="c,f", limits=0.05)
    assert verdicts(records) == {"c": "late", "f": "passed"}
    assert "over its time limit" in records["c"]["reason"]


def test_an_engine_that_does_not_start_is_not_started_for_every_stage(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({"start": "die"})
    assert acts(tmp_path) == ["eager start"]
    assert records["b"]["verdict"] == "died"
    assert (
        "did not start" in records["b"]["reason"] and "a fault in start" in records["b"]["reason"]
    )
    assert records["f"]["verdict"] == "not run"


def test_a_fault_that_ends_its_engine_has_that_as_its_symptom(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({SAFE[1]: "die", ALONE[0]: "die"}, stage="b,h", together=3)
    assert records["h"]["verdict"] == "passed"
    found = {each["name"]: each for each in records["h"]["numbers"]["hypotheses"]}
    assert set(found) == set(FAULTS)
    assert found[SAFE[1]]["verdict"] == "stopped" and "a fault in" in found[SAFE[1]]["why"]
    assert found[ALONE[0]]["verdict"] == "seen" and found[ALONE[0]]["stopped"]  # as predicted
    done = acts(tmp_path)
    assert all(done.count(f"eager {name}") == 1 for name in FAULTS)


def test_an_engine_that_is_not_sound_without_a_fault_ends_the_stage(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({"healthy": "die"}, stage="h", together=1)
    assert records["h"]["verdict"] == "died"
    assert acts(tmp_path).count("eager start") == 1


def test_an_engine_that_is_too_slow_to_start_is_started_once_more(
    check: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it compiled until then is kept, so the second start is the faster one."""
    monkeypatch.setattr(launching, "START_S", 6)
    records = check({"start": "hang once"}, stage="b,c")
    assert verdicts(records) == {"b": "passed", "c": "passed"}
    assert acts(tmp_path).count("eager start") == 2


def test_a_fault_whose_own_engine_is_not_sound_costs_no_other_fault_its_result(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({f"eager-{ALONE[0]}:healthy": "die"}, stage="b,h", together=3)
    assert records["h"]["verdict"] == "failed"
    assert f"no result for {ALONE[0]};" in records["h"]["reason"]
    assert f"{ALONE[0]} was not tried: at healthy" in records["h"]["reason"]
    assert len(records["h"]["numbers"]["hypotheses"]) == len(FAULTS) - 1
    assert acts(tmp_path).count("eager healthy") == 1 + 2 + len(ALONE) - 1  # it is tried twice


def test_a_fault_of_the_check_itself_fails_its_stage(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({SAFE[0]: "raise"}, stage="h", together=3)
    assert records["h"]["verdict"] == "failed"
    assert f"{SAFE[0]} ended by a fault of the check" in records["h"]["reason"]
    assert f"ValueError: {SAFE[0]}" in records["h"]["reason"]


def test_faults_that_all_have_results_need_no_engine(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    """A run that was cut after its last fault, before the stage's record; graphs do not wait for it."""
    check(stage="h")
    results.record_path(tmp_path, "h").unlink()
    acts(tmp_path)
    records = check(stage="h,g", parallel=True)
    assert verdicts(records) == {"h": "passed", "g": "passed"}
    assert [line for line in acts(tmp_path) if line.startswith("eager")] == []


def test_dumps_of_a_run_that_was_cut_are_compared_without_a_gpu(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    check(stage="e")
    pending = results.record("e", "not run", here=HERE)
    results.write_json(results.record_path(tmp_path, "e"), pending)
    acts(tmp_path)
    assert verdicts(check(stage="e")) == {"e": "passed"}
    assert acts(tmp_path) == [" judge"]
    results.write_json(results.record_path(tmp_path, "e"), pending)
    check(stage="e", sources={"v41": "another", "tree": "2"})
    assert acts(tmp_path) == ["eager start", "eager e", " judge"]


def test_dumps_are_compared_only_for_their_stage(check: Callable[..., Any], tmp_path: Path) -> None:
    check(stage="e")
    acts(tmp_path)
    check(stage="b")
    assert acts(tmp_path) == ["eager start", "eager b"]


def test_what_ends_an_engine_after_its_work_costs_nothing(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({"graphs:close": "die", "overlapped:close": "raise"}, stage="g")
    assert verdicts(records) == {"g": "passed"}


def test_the_log_of_an_engine_outlives_the_next_one(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check({"b": "die", "c": "die"}, stage="b,c")
    assert "a fault in b" in records["b"]["reason"]
    assert "a fault in c" in records["c"]["reason"] and "fault in b" not in records["c"]["reason"]
    log = (tmp_path / "log-eager.txt").read_text()
    assert "a fault in b" in log and "a fault in c" in log


def test_a_reason_that_a_worker_wrote_stays_when_a_part_is_missing(tmp_path: Path) -> None:
    raised = results.record("g", "failed", here=HERE, reason="Traceback: the very reason")
    results.write_json(results.record_path(tmp_path, "g"), raised)
    assert "the very reason" in compose(tmp_path, "g", HERE)["reason"]


def test_paths_are_those_of_the_folder_that_the_check_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = Options(work="w", prepared="p.json", checkpoint="c")
    assert given.folder == tmp_path / "w" and given.reference == tmp_path / "p.json"
    assert str(tmp_path / "c") in given.as_arguments()
    with pytest.raises(UsageError, match=r"config\.json"):
        ensure_checkpoint(given)


def test_a_worker_refuses_sources_that_are_not_those_of_its_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing, or of other sources"):
        here.told(tmp_path, None)
    results.write_json(tmp_path / here.HERE, HERE)
    with pytest.raises(UsageError, match="change no sources"):
        here.told(tmp_path, None)
    whole = here.facts(None)
    results.write_json(tmp_path / here.HERE, whole)
    assert here.told(tmp_path, None) == whole


def test_graphs_and_overlapped_scheduling_run_in_engines_of_their_own(
    check: Callable[..., Any], tmp_path: Path
) -> None:
    records = check(stage="g")
    assert verdicts(records) == {"g": "passed"}
    assert acts(tmp_path) == ["graphs start", "graphs g", "overlapped start", "overlapped g"]
    records = check({"overlapped:g": "die"}, stage="g", again=True)
    assert records["g"]["verdict"] != "passed"
    assert "a fault in g" in records["g"]["reason"]


def test_missing_reference_values_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(here, "facts", lambda tree: HERE)
    with pytest.raises(UsageError, match="--prepare"):
        Check(Options(stage="c", work=str(tmp_path)), lambda line: None).run()
    given = ["--stage", "c", "--work", str(tmp_path), "--checkpoint", str(FOLDER)]
    assert program.main(given) == 2
    assert "--prepare" in capsys.readouterr().err


def test_a_stage_that_did_not_pass_is_an_exit_code(
    check: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check({"c": "fail"}, stage="b,c")
    found = program.main(
        ["--stage", "b", "--work", str(tmp_path), "--checkpoint", str(FOLDER), "--json"]
    )
    assert found == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == {"b": "passed"}
    with pytest.raises(TestsFailed, match="c failed"):
        given = Options(stage="c", work=str(tmp_path), checkpoint=str(FOLDER))
        program.act(given, lambda line: None, prepare=False, merge=False)


def test_a_record_cut_in_the_middle_is_no_pass(tmp_path: Path) -> None:
    results.record_path(tmp_path, "b").write_text('{"verdict": "passed", "sour')
    assert not results.passed_already(tmp_path, "b", HERE["sources"])


def test_groups_run_beside_each_other_when_told(check: Callable[..., Any], tmp_path: Path) -> None:
    records = check(stage="b,g", parallel=True)
    assert verdicts(records) == {"b": "passed", "g": "passed"}
    done = acts(tmp_path)
    assert set(done) >= {"eager b", "graphs g", "overlapped g"}
    assert done[0] == "eager start"  # graphs wait until an engine has started
    assert verdicts(check({"start": "die"}, stage="b,g", parallel=True, again=True))["g"] == "died"


def test_a_check_that_is_told_to_stop_leaves_no_engine(tmp_path: Path) -> None:
    processes.STOP.set()
    try:
        engine = processes.WorkerProcess(
            ["--help"], name="x", work=tmp_path, environment=os.environ, limit_of=lambda _: 60.0
        )
        with pytest.raises(KeyboardInterrupt):
            processes.wait_all([engine])
        assert engine._process.returncode is not None
    finally:
        processes.STOP.clear()
