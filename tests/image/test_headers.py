"""All missing headers are named at once, with the package of each, before anything is compiled (F01)."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dih20.config.reading import read_config
from dih20.console import Console
from dih20.errors import HeaderMismatch
from dih20.image.build import build_image
from dih20.image.headers import TABLE, HeaderTable, header_facts
from dih20.image.inside import headers
from dih20.lock import Lock, LockedFile

SOURCE = """\
#include <cusparse.h>
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <cuda/std/utility>

int main() { return 0; }
"""
REQUIRED = {
    "cusparse.h": {"package": "nvidia-cusparse", "place": "overlay"},
    "cublas_v2.h": {"package": "nvidia-cublas", "place": "overlay"},
    "cusolverDn.h": {"package": "nvidia-cusolver", "place": "overlay"},
    "cuda/std/utility": {"package": "nvidia-cuda-cccl", "place": "overlay"},
}
FACTS = {"required": REQUIRED, "wheels": {}, "nvcc": "13.0"}


def check(overlay: Path, facts: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, headers.__file__, "check", "--facts", str(facts)]
    environment = {"CPATH": str(overlay), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def compiles(source: Path, overlay: Path) -> bool:
    command = ["g++", "-fsyntax-only", str(source)]
    done = subprocess.run(
        command,
        env={"CPATH": str(overlay), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@pytest.mark.nvcc
def test_one_report_names_every_missing_header_and_the_same_check_passes_after(
    tmp_path: Path,
) -> None:
    toolkit = Path("/usr/local/cuda/include")
    assert toolkit.is_dir(), "this test runs where a CUDA toolkit is"
    source, facts, overlay = tmp_path / "unit.cpp", tmp_path / "facts.json", tmp_path / "include"
    source.write_text(SOURCE)
    facts.write_text(json.dumps(FACTS))
    overlay.mkdir()

    before = check(overlay, facts)
    assert before.returncode == headers.MISMATCH
    for name, entry in REQUIRED.items():
        assert f"missing: {name}: supplied by {entry['package']}" in before.stderr
    assert not compiles(source, overlay)

    for name in ("cusparse.h", "cublas_v2.h", "cusolverDn.h"):
        (overlay / name).write_text("#pragma once\n")
    (overlay / "cuda").symlink_to(toolkit / "cccl" / "cuda")
    (overlay / "nv").symlink_to(toolkit / "cccl" / "nv")
    after = check(overlay, facts)
    assert after.returncode == 0, after.stderr
    assert compiles(source, overlay)


def test_headers_of_one_package_are_one_line() -> None:
    required = {
        "cublas_v2.h": {"package": "nvidia-cublas", "place": "overlay"},
        "cublasLt.h": {"package": "nvidia-cublas", "place": "overlay"},
        "cusparse.h": {"package": "nvidia-cusparse", "place": "overlay"},
    }
    places: dict[str, list[Path]] = {"overlay": []}
    assert headers.report(headers.missing(required, places)) == [
        "missing: cublasLt.h, cublas_v2.h: supplied by nvidia-cublas",
        "missing: cusparse.h: supplied by nvidia-cusparse",
    ]


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return path


def test_the_overlay_gets_the_headers_of_all_wheels_and_nothing_else(tmp_path: Path) -> None:
    one = wheel(tmp_path, "a", {"nvidia/cu13/include/a.h": "a", "nvidia/cu13/lib/liba.so.1": "x"})
    two = wheel(tmp_path, "b", {"nvidia/nccl/include/sub/b.h": "b", "nvidia/nccl/__init__.py": ""})
    assert headers.unpack([one, two], tmp_path / "into") == []
    written = {
        str(p.relative_to(tmp_path / "into")) for p in (tmp_path / "into").rglob("*") if p.is_file()
    }
    assert written == {"a.h", "sub/b.h"}


def test_a_header_on_which_two_wheels_disagree_is_a_fault(tmp_path: Path) -> None:
    one = wheel(tmp_path, "a", {"nvidia/cu13/include/same.h": "1", "nvidia/cu13/include/x.h": "1"})
    two = wheel(tmp_path, "b", {"nvidia/cu13/include/same.h": "1", "nvidia/cu13/include/x.h": "2"})
    assert headers.unpack([one, two], tmp_path / "into") == ["x.h differs between a.whl and b.whl"]


@pytest.mark.parametrize("place", ["", "include", "include/deeper"])
def test_the_toolkit_is_never_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(headers, "TOOLKIT", tmp_path / "cuda")
    (tmp_path / "cuda" / "include").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "cuda")
    one = wheel(tmp_path, "a", {"nvidia/cu13/include/a.h": "a"})
    for way in (tmp_path / "cuda" / place, tmp_path / "link" / place):
        assert "never written to" in headers.unpack([one], way)[0]
    assert not list((tmp_path / "cuda").rglob("*.h"))


def test_a_wheel_of_another_cuda_release_than_nvccs_is_named() -> None:
    wheels = {
        "nvidia-cusparse": {"version": "12.7.3.1", "cuda": "13.1"},
        "nvidia-cublas": {"version": "13.1.1.3", "cuda": "13.0"},
    }
    assert headers.wrong_release(wheels, "13.0") == [
        "nvidia-cusparse 12.7.3.1 belongs to CUDA 13.1, nvcc is CUDA 13.0"
    ]


def test_nvcc_is_asked_for_its_release(tmp_path: Path) -> None:
    assert headers.nvcc_release(tmp_path) is None
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.86'\n")
    nvcc.chmod(0o755)
    assert headers.nvcc_release(tmp_path) == "12.9"


@pytest.mark.parametrize(
    ("name", "version", "release"),
    [
        ("nvidia-cusparse", "12.6.3.3", "13.0"),
        ("nvidia-cublas", "13.1.1.3", "13.0"),
        ("nvidia-cublas", "13.2.0.9", "13.1"),
        ("nvidia-cusolver", "12.0.9.81", "13.1"),
        ("nvidia-curand", "10.4.2.55", "13.2"),
        ("nvidia-cuda-cccl", "13.0.85", "13.0"),
        ("nvidia-cusparse", "99.0.0", None),
        ("nvidia-cusparse", "12.6.30.1", None),
    ],
)
def test_library_versions_are_placed_in_their_cuda_release(
    name: str, version: str, release: str | None
) -> None:
    assert read_config(TABLE, HeaderTable).release_of(name, version) == release


def _header_wheel(version: str) -> LockedFile:
    return LockedFile(
        name="nvidia-cusparse",
        version=version,
        filename=f"nvidia_cusparse-{version}-py3-none-any.whl",
        sha256="0" * 64,
        size_bytes=1,
        kind="wheel",
    )


def _lock_with(wheel: LockedFile) -> Lock:
    lock = Lock.load()
    return lock.model_copy(update={"wheels": lock.wheels.model_copy(update={"headers": (wheel,)})})


def test_the_lock_itself_agrees_with_its_own_toolkit() -> None:
    facts = header_facts(Lock.load())
    assert facts["nvcc"] == "13.0"
    assert {entry["cuda"] for entry in facts["wheels"].values()} == {"13.0"}


def test_a_lock_that_mixes_cuda_releases_is_refused_before_any_container() -> None:
    with pytest.raises(
        HeaderMismatch, match=r"12\.7\.2\.19 belongs to CUDA 13\.1, nvcc is CUDA 13\.0"
    ):
        header_facts(_lock_with(_header_wheel("12.7.2.19")))


def test_a_version_that_the_table_does_not_know_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(HeaderMismatch) as caught:
        header_facts(_lock_with(_header_wheel("12.99.0.1")))
    assert "images/di-h20/headers.yaml" in caught.value.found


@pytest.mark.docker
def test_a_build_with_header_wheels_missing_lists_them_all_and_passes_when_they_are_back(
    engine: Any,
    standin_image: str,
    small_lock: Lock,
    stand_in_config: Any,
    real_steps: Any,
) -> None:
    steps = [real_steps["30-headers"]]
    few = small_lock.wheels.model_copy(
        update={"headers": tuple(w for w in small_lock.wheels.headers if w.name == "nvidia-curand")}  # type: ignore[union-attr]
    )
    lacking = small_lock.model_copy(update={"wheels": few})
    with pytest.raises(HeaderMismatch) as caught:
        build_image(Console(as_json=True), engine, stand_in_config, lacking, steps=steps)
    assert caught.value.exit_code == 12
    for line in (
        "missing: cublasLt.h, cublas_v2.h: supplied by nvidia-cublas",
        "missing: cusolverDn.h: supplied by nvidia-cusolver",
        "missing: cusparse.h: supplied by nvidia-cusparse",
    ):
        assert line in caught.value.found
    assert "curand" not in caught.value.found
    assert build_image(Console(as_json=True), engine, stand_in_config, small_lock, steps=steps).id
