"""Hashes of sources, the evidence that is made of all records, and the command line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dih20.engine_check import here, reference, results, sources
from dih20.engine_check.engine_environment import environment
from dih20.engine_check.hypotheses import HYPOTHESES
from dih20.engine_check.merging import EVIDENCE, merge_records
from dih20.engine_check.options import Options, add_arguments, from_namespace
from dih20.engine_check.stages import LETTERS, chosen
from dih20.errors import TestsFailed, UsageError
from dih20.paths import REPOSITORY
from tests.engine_check.conftest import HERE

pytestmark = pytest.mark.torch
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOUND = {
    "commit": COMMIT,
    "versions": {"found": {"torch": "2.11.0"}, "pinned": {"torch": "2.13.0"}},
}


def quiet(line: str) -> None:
    del line


def write_all(work: Path, **changed: Any) -> None:
    numbers: dict[str, Any] = {
        "c": {
            "answers_right": 32,
            "answers_asked": 32,
            "log_probs": {"mean_difference": 0.001},
        },
        "d": {"of_prompts": {"median_difference": 0.02}, "reach": {"rows": 63, "steps": 5}},
        "e": {"cases": {"640 tokens": {"verdict": "ok", "sites": {"attn.q prefill": {}}}}},
        "h": {
            "hypotheses": [{"name": each.name, "verdict": "seen"} for each in HYPOTHESES],
            "healthy": {},
        },
    }
    for letter in LETTERS:
        whole = HERE | FOUND | changed.get(letter, {})
        verdict = whole.pop("verdict", results.PASSED)
        given = whole.pop("numbers", numbers.get(letter, {}))
        record = results.record(letter, verdict, here=whole, numbers=given)
        results.write_json(results.record_path(work, letter), record)


def test_the_evidence_has_what_the_issue_asks_for(tmp_path: Path) -> None:
    write_all(tmp_path)
    merge_records(tmp_path, quiet, tmp_path / "evidence.json")
    evidence = json.loads((tmp_path / "evidence.json").read_text())
    assert (evidence["answers_right"], evidence["answers_asked"]) == (32, 32)
    assert evidence["card"] == "a card" and evidence["commit"] == COMMIT and evidence["passed"]
    assert evidence["versions"]["found"]["torch"] == "2.11.0"
    assert evidence["torch_2_13_on_gpu"] == "not run"
    assert evidence["sites"] == {"640 tokens": {"attn.q prefill": {}}}
    assert [each["name"] for each in evidence["hypotheses"]] == [each.name for each in HYPOTHESES]
    assert set(evidence["stages"]) == set(LETTERS)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"sources": {"v41": "2", "tree": "2"}}, "sources: v41"),
        ({"card": "another card"}, "card"),
        ({"commit": "d"}, "commit"),
    ],
)
def test_records_of_two_kinds_are_not_merged(
    tmp_path: Path, other: dict[str, Any], named: str
) -> None:
    write_all(tmp_path, g=other)
    with pytest.raises(UsageError, match=f"a and g differ in {named}"):
        merge_records(tmp_path, quiet, tmp_path / "evidence.json")
    assert not (tmp_path / "evidence.json").exists()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"card": "none"}, "no card"),
        ({"commit": "unknown"}, "commit unknown"),
        ({"commit": f"{COMMIT}-changed"}, "commit .*-changed"),
        ({"sources": {"v41": "1", "tree": "missing"}}, "sources tree are missing"),
    ],
)
def test_records_of_no_card_commit_or_sources_are_no_evidence(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    write_all(tmp_path, **dict.fromkeys(LETTERS, changed))
    with pytest.raises(UsageError, match=named):
        merge_records(tmp_path, quiet, tmp_path / "evidence.json")
    assert not (tmp_path / "evidence.json").exists()


@pytest.mark.parametrize(
    ("letter", "numbers", "named"),
    [
        ("c", {}, "c passed with None of None answers"),
        (
            "c",
            {"answers_right": 0, "answers_asked": 0, "log_probs": {"mean_difference": 0.1}},
            "c passed with 0 of 0 answers",
        ),
        ("c", {"answers_right": 32, "answers_asked": 32}, "c passed with no difference"),
        (
            "d",
            {"reach": {"rows": 63, "steps": 5}},
            "d passed with no difference of prompts' log-probs",
        ),
        (
            "d",
            {"of_prompts": {"median_difference": 0.02}, "reach": {"rows": 0, "steps": 0}},
            "d passed with no row and step",
        ),
        ("e", {"cases": {}}, "e passed with no sites in any case"),
        ("e", {"cases": {"90": {"sites": {}}}}, "e passed with no sites in 90"),
        ("h", {"hypotheses": [{"name": HYPOTHESES[0].name}]}, "h passed with 1 of 12 faults"),
    ],
)
def test_a_stage_that_passed_without_its_numbers_is_no_evidence(
    tmp_path: Path, letter: str, numbers: dict[str, Any], named: str
) -> None:
    write_all(tmp_path, **{letter: {"numbers": numbers}})
    with pytest.raises(UsageError, match=named):
        merge_records(tmp_path, quiet, tmp_path / "evidence.json")
    write_all(tmp_path, **{letter: {"numbers": numbers, "verdict": results.FAILED}})
    with pytest.raises(TestsFailed):
        merge_records(tmp_path, quiet, tmp_path / "evidence.json")


def test_a_missing_stage_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    write_all(tmp_path)
    results.record_path(tmp_path, "d").unlink()
    with pytest.raises(UsageError, match="no record of stage d"):
        merge_records(tmp_path, quiet, tmp_path / "evidence.json")
    assert not (tmp_path / "evidence.json").exists()


def test_a_stage_that_failed_is_in_the_evidence_and_in_the_exit_code(tmp_path: Path) -> None:
    write_all(tmp_path, f={"verdict": results.FAILED})
    with pytest.raises(TestsFailed, match="stages f did not pass"):
        merge_records(tmp_path, quiet, tmp_path / "evidence.json")
    evidence = json.loads((tmp_path / "evidence.json").read_text())
    assert evidence["passed"] is False
    assert evidence["stages"]["f"]["verdict"] == "failed"


def test_any_changed_source_changes_the_hash_of_its_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("v41", "h20_ops/cuda", "dropins", "patches/sm90", "dih20/parity", "deepinfer"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("1")
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    before = sources.source_hashes(tmp_path)
    assert "missing" not in before.values()
    (tmp_path / "h20_ops/cuda/k.cuh").write_text("x")
    (tmp_path / "deepinfer/a.py").write_text("2")
    (tmp_path / "v41/__pycache__").mkdir()
    (tmp_path / "v41/__pycache__/a.py").write_text("not a source")
    after = sources.source_hashes(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"h20_ops", "tree"}
    assert sources.source_hashes(tmp_path / "nothing")["tree"] == "missing"


def test_versions_pinned_come_from_the_lock() -> None:
    pinned = here.pinned()
    assert pinned["torch"].startswith("2.")
    assert pinned["deep_gemm"] == "2.8.2" and pinned["deepinfer"] == "0.1.0"
    assert pinned["tilelang"] == "0.1.15"
    assert here.found()["torch"] != "none"


def test_stages_are_chosen_by_letter_list_or_range() -> None:
    assert "".join(each.letter for each in chosen("")) == "bcdefhga"
    assert [each.letter for each in chosen("d,b")] == ["b", "d"]
    assert [each.letter for each in chosen("b-d,a")] == ["b", "c", "d", "a"]
    with pytest.raises(UsageError, match="--stage x"):
        chosen("x")


def test_options_survive_the_way_to_a_worker() -> None:
    given = Options(stage="b-f", work="/w", again=True, memory=0.15, limits=2.0, take=3)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert from_namespace(parser.parse_args(given.as_arguments())) == given


def test_what_decides_the_check_wins_over_the_environment() -> None:
    given = {"DEEPINFER_USE_NEXTN_DECODE": "5", "CUDA_VISIBLE_DEVICES": "3,4", "HOME": "/h"}
    whole = environment("overlapped", given)
    assert whole["DEEPINFER_USE_NEXTN_DECODE"] == "0"
    assert whole["DEEPINFER_ZERO_OVERHEAD_SCHEDULING"] == "1"
    assert whole["CUDA_VISIBLE_DEVICES"] == "3" and whole["HOME"] == "/h"
    assert environment("eager", given)["DEEPINFER_ENFORCE_EAGER"] == "1"
    ports = {environment("eager", {})["MASTER_PORT"] for _ in range(4)}
    assert len(ports) > 1


def test_reference_values_of_other_sources_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reference.json"
    empty: dict[str, Any] = {
        name: [] for name in ("questions", "long", "mixed", "dumped", "answers")
    }
    results.write_json(path, {"key": reference.key(), "values": empty})
    assert reference.load(path).questions == ()
    monkeypatch.setattr(reference, "key", lambda: "another")
    with pytest.raises(UsageError, match="values of other sources"):
        reference.load(path)


def test_numbers_that_are_none_are_words_in_a_record(tmp_path: Path) -> None:
    results.write_json(tmp_path / "a.json", {"value": float("nan"), "inner": [float("inf")]})
    assert results.read_json(tmp_path / "a.json") == {"value": "nan", "inner": ["inf"]}


_ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"invoke", "rich", "pydantic", "libcst", "docker", "paramiko", "yaml_missing"}:
            raise ImportError(name + " is not on a bare host")
sys.meta_path.insert(0, Refuse())
import dih20.engine_check.__main__, dih20.engine_check.running, dih20.engine_check.worker
import dih20.engine_check.judge, dih20.engine_check.upstream_tests, dih20.engine_check.merging
import dih20.engine_check.engine_driver
import dih20.parity.compare, dih20.parity.diagnosis
"""


def test_the_part_beside_the_engine_needs_no_package_of_the_tasks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], cwd=REPOSITORY, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_plan_names_the_stages_and_runs_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "invoke", "engine-check", "--plan", "--json"]
    command += ["--stage", "c-d", "--work", str(tmp_path / "w")]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    actions = json.loads(done.stdout)["result"]["actions"]
    assert [action["target"].split(":")[0] for action in actions] == ["stage c", "stage d"]
    assert not (tmp_path / "w").exists()


def test_the_record_is_of_todays_engine_and_the_document_says_if_the_check_is_newer() -> None:
    record = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    assert record["passed"] and record["answers_right"] == record["answers_asked"] == 32
    assert record["commit"] == record["bundle"]["commit"] and len(record["commit"]) == 40
    now = sources.source_hashes()
    changed = {name for name in now if name != "tree" and now[name] != record["sources"][name]}
    assert changed <= {"engine_check"}, "run ./inv engine-check on a GPU, and merge"
    document = (REPOSITORY / "docs/engine-check.md").read_text(encoding="utf-8")
    said = "Changed since that record: engine_check." in document
    assert said is bool(changed), "docs/engine-check.md says whether the check itself has changed"


def test_a_commit_says_when_files_differ_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "REPOSITORY", tmp_path)
    monkeypatch.delenv("DIH20_COMMIT", raising=False)
    assert here.commit() == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    committed = here.commit()
    assert len(committed) == 40
    (tmp_path / "file").write_text("2")
    assert here.commit() == f"{committed}-changed"
