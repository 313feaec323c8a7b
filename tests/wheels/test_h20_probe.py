"""h20_probe where there is no GPU: every way in which CUDA does not start is named, and the wheel is right."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dih20.paths import REPOSITORY
from dih20.wheels import elf
from dih20.wheels.device_code import read_fatbins
from dih20.wheels.identity import tree_digest
from dih20.wheels.inspector import inspect_wheel
from dih20.wheels.recipes import load_all
from tests.wheels.binaries import shared_object

SOURCE = REPOSITORY / "h20_probe"
EVIDENCE = REPOSITORY / "docs" / "evidence" / "h20_probe.json"
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return RESULT; }
int cuGetErrorName(int code, const char** name) { *name = "CUDA_ERROR_MADE_UP"; return 0; }
"""


def _probe(*arguments: str, libraries: Path | None = None) -> tuple[int, dict[str, Any], str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE / "src"), "LD_LIBRARY_PATH": str(libraries or "")}
    done = subprocess.run(
        [sys.executable, "-m", "h20_probe", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def _driver(folder: Path, result: int) -> Path:
    flags = [f"-DRESULT={result}", "-Wl,-soname,libcuda.so.1"]
    return shared_object(folder / "libcuda.so.1", DRIVER, flags=flags).parent


def test_without_a_driver_it_exits_2_with_three_parts_and_still_prints_json(tmp_path: Path) -> None:
    code, report, stderr = _probe(libraries=tmp_path)
    assert code == 2
    assert report["ok"] is False
    (problem,) = report["problems"]
    assert "libcuda.so.1 cannot be loaded" in problem["found"]
    assert problem["expected"]
    assert "--gpus all" in problem["next"]
    assert "expected:" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("result", "name", "hint"),
    [
        (802, "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),  # F30
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"),
        (34, "CUDA_ERROR_STUB_LIBRARY", "stubs folder"),  # F05
        (100, "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"),
        (777, "CUDA_ERROR_MADE_UP", "kernel log"),
    ],
)
def test_a_failed_cuinit_is_named_with_its_usual_cause_and_the_mapped_file(
    tmp_path: Path, result: int, name: str, hint: str
) -> None:
    code, report, _ = _probe(libraries=_driver(tmp_path, result))
    assert code == 2
    (problem,) = report["problems"]
    assert f"cuInit returned {result} ({name})" in problem["found"]
    assert str(tmp_path / "libcuda.so.1") in problem["found"]
    assert hint in problem["next"]


@pytest.fixture
def probe_modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SOURCE / "src"))
    return tuple(importlib.import_module(f"h20_probe.{name}") for name in ("mapped", "nccl"))


def test_nccl_versions_are_read_in_both_numberings(probe_modules: Any) -> None:
    _, nccl = probe_modules
    assert nccl.version_text(23203) == "2.32.3"
    assert nccl.version_text(2804) == "2.8.4"


def test_two_nccl_libraries_and_a_wrong_version_are_two_problems(probe_modules: Any) -> None:
    _, nccl = probe_modules
    seen = {"torch": None, "libnccl": ["/a/libnccl.so.2", "/b/libnccl.so.2"], "version": "2.28.9"}
    found = nccl.problems(seen, "2.32.3")
    assert [problem.check for problem in found] == ["nccl", "nccl"]
    assert "2 NCCL libraries" in found[0].found
    assert "NCCL 2.28.9" in found[1].found
    good = {"torch": None, "libnccl": ["/a/libnccl.so.2"], "version": "2.32.3"}
    assert nccl.problems(good, "2.32.3") == []


def test_mapped_files_are_listed_once_and_by_their_own_name(probe_modules: Any) -> None:
    mapped, _ = probe_modules
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 1 /opt/libnccl.so.2\n"
        "7f01-7f02 rw-p 00000000 08:01 1 /opt/libnccl.so.2\n"
        "7f02-7f03 r-xp 00000000 08:01 2 /x y/libnccl.so.2 (deleted)\n"
        "7f03-7f04 r-xp 00000000 08:01 3 /opt/libnccl.so.2.d/other.so\n"
        "7f04-7f05 rw-p 00000000 00:00 0\n"
    )
    assert mapped.mapped_files("libnccl.so", maps) == ["/opt/libnccl.so.2", "/x y/libnccl.so.2"]


def test_the_recorded_run_on_a_gpu_belongs_to_the_source_in_this_tree() -> None:
    evidence = json.loads(EVIDENCE.read_text())
    assert evidence["wheel"]["source"] == tree_digest(SOURCE), (
        "h20_probe changed since its run was recorded: run it on a GPU again and commit the new evidence"
    )
    first = evidence["runs"][0]
    assert first["exit_code"] == 0
    (device,) = first["report"]["driver"]["devices"]
    assert device["compute_capability"] == "9.0"
    assert device["kernel"]["wrong"] == 0


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as this machine's nvcc builds it, without a container."""
    import shutil

    folder = tmp_path_factory.mktemp("probe")
    shutil.copytree(SOURCE, folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.nvcc
def test_one_wheel_serves_every_python_3_and_keeps_its_promises(built: Path) -> None:
    assert built.name.endswith("-py3-none-linux_x86_64.whl")
    (recipe,) = [recipe for recipe in load_all() if recipe.name == "h20_probe"]
    verdicts = inspect_wheel(built, recipe, python_tag="cp312")
    assert {v.status for v in verdicts} <= {"ok", "not applicable"}, verdicts


@pytest.mark.nvcc
def test_its_library_holds_sm_90a_machine_code_and_needs_neither_libcuda_nor_libstdcpp(
    built: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    library = tmp_path / "h20_probe" / "libh20_probe.so"
    code = read_fatbins(library)
    assert code.machine_code == {"sm_90a"}
    assert code.ptx == frozenset()
    assert not {"libcuda.so.1", "libstdc++.so.6"} & set(elf.read(library).needed)
