from __future__ import annotations

from pathlib import Path

import pytest

from dih20.doctor.registry import Finding, Subject
from dih20.hosts.fake import FakeRunner
from dih20.wheels.checks import compiler_is_there, nvcc_is_new_enough, toolkit_headers_are_there


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for name in (
        "cuda.h",
        "cuda_runtime.h",
        "cuda_fp8.h",
        "crt/host_config.h",
        "cccl/cuda/std/utility",
    ):
        header = tmp_path / "include" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    return tmp_path


def _nvcc(toolkit: Path, stdout: str, exit_code: int = 0) -> Finding:
    runner = FakeRunner().expect(
        [str(toolkit / "bin" / "nvcc"), "--version"], stdout=stdout, exit_code=exit_code
    )
    (finding,) = nvcc_is_new_enough(Subject(runner=runner))
    return finding


@pytest.mark.parametrize(
    ("release", "status"), [("13.0", "ok"), ("12.9", "ok"), ("12.8", "fail"), ("11.10", "fail")]
)
def test_nvcc_must_be_12_9_or_newer(toolkit: Path, release: str, status: str) -> None:
    finding = _nvcc(toolkit, f"Cuda compilation tools, release {release}, V{release}.88")
    assert finding.status == status
    assert release in finding.found


def test_no_nvcc_is_a_warning_because_builds_bring_their_own(toolkit: Path) -> None:
    finding = _nvcc(toolkit, "", exit_code=127)
    assert finding.status == "warn"
    assert "lock" in finding.remedy


def test_every_missing_header_is_named(toolkit: Path) -> None:
    subject = Subject(runner=FakeRunner())
    assert [finding.status for finding in toolkit_headers_are_there(subject)] == ["ok"]
    (toolkit / "include" / "cuda_fp8.h").unlink()
    (toolkit / "include" / "cccl" / "cuda" / "std" / "utility").unlink()
    (finding,) = toolkit_headers_are_there(subject)
    assert finding.status == "warn"
    assert "cuda_fp8.h" in finding.found
    assert "CCCL" in finding.found


@pytest.mark.parametrize(("exit_code", "status"), [(0, "ok"), (127, "warn")])
def test_the_compiler_is_looked_for(exit_code: int, status: str) -> None:
    runner = FakeRunner().expect(
        ["g++", "-dumpfullversion"], stdout="14.2.0\n", exit_code=exit_code
    )
    (finding,) = compiler_is_there(Subject(runner=runner))
    assert finding.status == status
