"""`inv test` by marks: what is selected, what is set up for it, and what is left out is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dih20.dev.selection import LEAVES_OUT_TORCH, Selection, selection
from dih20.errors import UsageError
from dih20.paths import REPOSITORY
from dih20.rehearse.host_packages import NEEDED, missing_packages

DEFAULT = "not vendor and not gpu and not nvcc_full"


def options(**given: Any) -> Selection:
    values: dict[str, Any] = {"vendor": False, "only": "", "path": "", "marks": "", "without": ""}
    return selection(**{**values, **given})


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        ({}, DEFAULT),
        ({"vendor": True}, "vendor"),
        ({"marks": "docker"}, f"{DEFAULT} and docker"),
        ({"marks": "docker,ssh"}, f"{DEFAULT} and (docker or ssh)"),
        ({"without": "docker, ssh"}, f"{DEFAULT} and not docker and not ssh"),
        ({"marks": "ssh", "without": "docker"}, f"{DEFAULT} and ssh and not docker"),
    ],
)
def test_marks_become_one_expression(given: dict[str, Any], expression: str) -> None:
    assert options(**given).options()[:2] == ["-m", expression]


def test_names_and_paths_are_handed_on() -> None:
    assert options(only="hash", path="tests/a,tests/b").options()[2:] == [
        *("-k", "hash"),
        *("tests/a", "tests/b"),
    ]


def test_what_is_left_out_is_not_set_up() -> None:
    assert options().groups == ("dev", "torch")
    light = options(without="torch,docker")
    assert light.groups == ("dev",)
    assert LEAVES_OUT_TORCH in light.options()
    assert LEAVES_OUT_TORCH not in options().options()


def test_an_engine_is_not_installed_for_tests_that_need_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dih20.rehearse.host_packages.find_program", lambda name: None)
    assert missing_packages() == list(NEEDED)
    without = {entry.package for entry in missing_packages(("docker",))}
    assert without == {entry.package for entry in NEEDED} - {"docker.io"}
    assert "openssh-server" not in {e.package for e in missing_packages(("ssh",))}


def test_a_mark_that_no_test_has_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--without: no mark dokcer"):
        options(without="dokcer")
    with pytest.raises(UsageError, match="--marks: no mark gpu"):
        options(marks="gpu")


def test_modules_that_import_torch_are_left_out_by_name_and_other_faults_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_plain.py").write_text("def test_it() -> None: pass\n")
    (tmp_path / "test_torch.py").write_text("import torch\ndef test_it() -> None: pass\n")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    command = [sys.executable, "-m", "pytest", "-p", LEAVES_OUT_TORCH, "-p", "no:cacheprovider"]
    command += ["--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    done = run()
    assert done.returncode == 0, done.stdout
    assert "1 modules left out: they import torch" in done.stdout
    assert "test_torch.py" in done.stdout
    assert "1 passed" in done.stdout
    (tmp_path / "test_other.py").write_text("import nosuchmodule\n")
    assert run().returncode != 0
