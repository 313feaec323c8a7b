"""`inv parity`, verb by verb, on a checkpoint on disk: what is printed, written, and the exit code."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dih20 import groups
from dih20.console import Console
from dih20.errors import DumpUnusable, ParityDiverged, ParityIncomplete, UsageError
from dih20.parity.command import Options, run_verb
from tests.parity.runs import CONFIG, WEIGHTS
from v41.checkpoint import write_checkpoint

pytestmark = pytest.mark.torch
QUIET = Options(length=43, decode=3, data_class="synthetic")


@pytest.fixture(autouse=True)
def _no_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ensure", lambda ui, group: None)


def write(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    write_checkpoint(folder, dataclasses.asdict(CONFIG), weights)
    vocab = {f"w{number // 2}{'xX'[number % 2]}": number for number in range(CONFIG.vocab_size)}
    tokenizer = {"model": {"vocab": vocab}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, one with w1 and w3 of an expert swapped, and dumps of both."""
    root = Path(tmp_path_factory.mktemp("parity-command"))
    swapped = dict(WEIGHTS)
    first, third = (f"layers.3.ffn.experts.1.{name}.weight" for name in ("w1", "w3"))
    swapped[first], swapped[third] = WEIGHTS[third], WEIGHTS[first]
    write(root / "good", WEIGHTS)
    write(root / "swapped", swapped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "ensure", lambda ui, group: None)
        for name, checkpoint in (("a", "good"), ("a2", "good"), ("b", "swapped")):
            run_verb(Console(), "dump", str(root / checkpoint), str(root / name), QUIET)
    claim_same_weights(root)
    return root


def claim_same_weights(root: Path) -> None:
    """The second run loaded the same checkpoint wrongly, so it says that it had the first's weights."""
    paths = [root / name / "index.rank-0.json" for name in ("a", "b")]
    a, b = (json.loads(path.read_text()) for path in paths)
    b["run"]["weights"] = a["run"]["weights"]
    paths[1].write_text(json.dumps(b))


def test_compare_of_equal_runs_says_ok(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = dataclasses.replace(QUIET, out=str(folder / "same"))
    result = run_verb(Console(), "compare", str(folder / "a"), str(folder / "a2"), options)
    assert result["verdict"].startswith("parity OK (synthetic data)")
    printed = capsys.readouterr().out
    assert "data: synthetic; noise floor NOT measured" in printed
    assert "parity OK" in printed
    assert "looks like" not in printed


def test_compare_names_the_swapped_experts_site_and_leaves_a_folder_that_reproduces_it(
    folder: Path,
) -> None:
    options = dataclasses.replace(
        QUIET, checkpoint=str(folder / "good"), out=str(folder / "found"), repeat=str(folder / "a2")
    )
    with pytest.raises(ParityDiverged, match=r"first at layers\.3\.ffn\.routed") as caught:
        run_verb(Console(), "compare", str(folder / "a"), str(folder / "b"), options)
    assert caught.value.exit_code == 64
    assert "repro.py" in caught.value.remedy
    lines = (folder / "found" / "findings.jsonl").read_text().splitlines()
    findings = [json.loads(line) for line in lines]
    assert next(f for f in findings if f["origin"] == "fresh")["site"] == "layers.3.ffn.routed"
    verdict = json.loads((folder / "found" / "verdict.json").read_text())
    assert verdict["floor_measured"] is True
    assert verdict["coverage"]["data_class"] == "synthetic"


def test_the_repro_folder_stands_alone(folder: Path, tmp_path: Path) -> None:
    options = dataclasses.replace(QUIET, out=str(tmp_path / "out"))
    with pytest.raises(ParityDiverged):
        run_verb(Console(), "compare", str(folder / "a"), str(folder / "b"), options)
    moved = (tmp_path / "out" / "repro").rename(tmp_path / "elsewhere")
    script = [sys.executable, "-I", str(moved / "repro.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "layers.3.ffn.routed prefill step 0" in done.stdout
    assert "input.layers.3.ffn.expert_ids" in done.stdout


def test_report_writes_one_page_that_loads_nothing(folder: Path) -> None:
    options = dataclasses.replace(QUIET, out=str(folder / "page"), repeat=str(folder / "a2"))
    result = run_verb(Console(), "report", str(folder / "a"), str(folder / "b"), options)
    page = Path(result["report"]).read_text()
    assert "DIVERGED first at layers.3.ffn.routed" in page
    for part in ("<polyline", "<rect", "noise floor", "prefill", "decode", "B - A"):
        assert part in page, part
    for outside in ("<script", "<link", "<img", "@import", "url("):
        assert outside not in page, outside
    assert page.count("http") == page.count('xmlns="http://www.w3.org/2000/svg"')


def test_replay_lists_the_sites_that_add_an_error_themselves(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = dataclasses.replace(QUIET, checkpoint=str(folder / "good"))
    result = run_verb(Console(), "replay", str(folder / "b"), str(folder / "b"), options)
    assert result["exceed"] >= 1
    printed = capsys.readouterr().out
    assert "layers.3.ffn.routed" in printed
    assert "layers.4" not in printed


def test_replay_without_a_checkpoint_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint"):
        run_verb(Console(), "replay", str(folder / "b"), str(folder / "b"), QUIET)


def test_a_short_prompt_ends_in_another_exit_code_than_ok(folder: Path) -> None:
    short = dataclasses.replace(QUIET, length=9, decode=0, out=str(folder / "short"))
    for name in ("s1", "s2"):
        run_verb(Console(), "dump", str(folder / "good"), str(folder / name), short)
    with pytest.raises(ParityIncomplete, match="parity NOT shown") as caught:
        run_verb(Console(), "compare", str(folder / "s1"), str(folder / "s2"), short)
    assert caught.value.exit_code == 65


@pytest.mark.parametrize(
    ("verb", "a", "b", "change", "kind", "match"),
    [
        ("diff", "a", "b", {}, UsageError, "no verb 'diff'"),
        ("dump", "none", "x", {}, DumpUnusable, r"none.*config.json does not exist"),
        ("dump", "good", "x", {"mode": "fast"}, DumpUnusable, "numeric mode 'fast'"),
        ("dump", "good", "x", {"decode": 99}, UsageError, "99 decode steps over 43 tokens"),
        ("dump", "good", "x", {"data_class": "fake"}, UsageError, "--data fake"),
        ("dump", "good", "x", {"tokens": "none.json"}, UsageError, "none.json"),
        ("dump", "good", "a", {}, DumpUnusable, "already holds a dump"),
        ("compare", "a", "none", {}, DumpUnusable, "no such folder"),
    ],
)
def test_bad_input_has_its_own_error(
    folder: Path,
    verb: str,
    a: str,
    b: str,
    change: dict[str, object],
    kind: type[Exception],
    match: str,
) -> None:
    options = dataclasses.replace(QUIET, **change)  # type: ignore[arg-type]
    with pytest.raises(kind, match=match):
        run_verb(Console(), verb, str(folder / a), str(folder / b), options)


def test_token_files_must_hold_ids_of_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text("[1, 2, 4096]")
    options = dataclasses.replace(QUIET, tokens=str(path))
    with pytest.raises(UsageError, match=r"outside 0\.\.95"):
        run_verb(Console(), "dump", str(folder / "good"), str(tmp_path / "x"), options)


def test_a_tokenizer_is_needed_for_engram_and_a_prompt_is_encoded_by_it(
    folder: Path, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "bare", dataclasses.asdict(CONFIG), WEIGHTS)
    with pytest.raises(DumpUnusable, match=r"tokenizer.json does not exist"):
        run_verb(Console(), "dump", str(tmp_path / "bare"), str(tmp_path / "x"), QUIET)
    options = dataclasses.replace(QUIET, prompt="w3xw3Xw4x", decode=1)
    result = run_verb(Console(), "dump", str(folder / "good"), str(tmp_path / "p"), options)
    assert result["steps"] == 2


def test_a_plan_says_what_would_be_written_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = dataclasses.replace(QUIET, out=str(tmp_path / "out"))
    plan = run_verb(Console(), "report", "a", "b", options, only_plan=True)
    assert [action["verb"] for action in plan["actions"]] == ["read", "read", "write"]
    assert "report.html" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
