"""inv doctor refuses our drop-in beside the package it replaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dih20.doctor.registry import Finding, Subject
from dih20.gpu.checks import drop_ins_here, drop_ins_on_host, judge, owners_command
from dih20.hosts.fake import FakeRunner


@pytest.mark.parametrize(
    ("owners", "status"),
    [
        ([], "not applicable"),
        (["deepinfer_flashmla"], "not applicable"),
        (["h20-flash-mla"], "ok"),
        (["h20_flash_mla"], "ok"),
        (["deepinfer_flashmla", "h20-flash-mla"], "fail"),
        (["flash_mla", "h20-flash-mla"], "fail"),
    ],
)
def test_each_combination_of_owners_is_judged(owners: list[str], status: str) -> None:
    assert judge("flash_mla", owners).status == status


def test_a_refusal_names_both_distributions_and_the_way_out() -> None:
    finding = judge("flash_mla", ["deepinfer_flashmla", "h20-flash-mla"])
    assert finding.found == "flash_mla belongs to h20-flash-mla and also to deepinfer_flashmla"
    assert "pip uninstall deepinfer_flashmla h20-flash-mla" in finding.remedy


def answer(stdout: str = "", exit_code: int = 0, stderr: str = "") -> list[Finding]:
    runner = FakeRunner().expect(
        owners_command(), stdout=stdout, exit_code=exit_code, stderr=stderr
    )
    return list(drop_ins_on_host(Subject(runner=runner)))


def test_a_host_is_asked_over_its_runner() -> None:
    (finding,) = answer(json.dumps({"flash_mla": ["h20-flash-mla", "flash_mla"]}))
    assert finding.status == "fail"


def test_a_python_that_cannot_answer_is_not_taken_for_a_good_one() -> None:
    (finding,) = answer(exit_code=127, stderr="python3: not found")
    assert finding.status == "not run" and "python3: not found" in finding.found


def test_the_check_for_this_machine_asks_the_same_question() -> None:
    runner = FakeRunner().expect(owners_command(), stdout=json.dumps({"flash_mla": []}))
    (finding,) = drop_ins_here(Subject(runner=runner))
    assert finding.status == "not applicable"


def test_two_installed_distributions_are_really_found(tmp_path: Path) -> None:
    """The script itself, against two distributions laid out as pip leaves them."""
    for name in ("h20-flash-mla", "deepinfer_flashmla"):
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("flash_mla/__init__.py,,\n")
    (tmp_path / "flash_mla").mkdir()  # python 3.12 and later count only files that are there
    (tmp_path / "flash_mla/__init__.py").touch()
    command = owners_command(sys.executable)
    shown = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    owners = json.loads(shown.stdout)
    assert owners == {"flash_mla": ["deepinfer_flashmla", "h20-flash-mla"]}
    assert judge("flash_mla", owners["flash_mla"]).status == "fail"
