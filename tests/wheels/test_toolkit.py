from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import WheelError
from dih20.lock.files import LockedFile
from dih20.wheels import toolkit


@pytest.mark.parametrize("release", ["12.8 V12.8.93", "11.8 V11.8.89", "12.8.93"])
def test_an_old_nvcc_is_refused_with_its_release(release: str) -> None:
    with pytest.raises(WheelError) as caught:
        toolkit.refuse_old(release, "image sha256:1")
    assert release in caught.value.found
    assert "12.9" in caught.value.expected


@pytest.mark.parametrize("release", ["12.9 V12.9.1", "13.0.88", "13.10 V13.10.1"])
def test_a_new_enough_nvcc_passes(release: str) -> None:
    toolkit.refuse_old(release, "image sha256:1")


class _Lock:
    def __init__(self, files: list[LockedFile]) -> None:
        self._files = files

    def toolkit_wheels(self) -> list[LockedFile]:
        return self._files


def _locked(name: str) -> LockedFile:
    return LockedFile(
        name=name,
        version="13.0.88",
        filename=f"{name}.whl",
        sha256="a" * 64,
        size_bytes=1,
        kind="wheel",
    )


def _assemble(folder: Path, monkeypatch: pytest.MonkeyPatch, members: list[str]) -> Path:
    monkeypatch.setenv("DI_CACHE", str(folder / "cache"))
    wheel = folder / "toolkit.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member in members:
            archive.writestr(member, "x")
    monkeypatch.setattr(toolkit, "cached", lambda file: wheel)
    lock: Any = _Lock([_locked("nvidia-cuda-nvcc")])
    return toolkit.assemble(Console(as_json=True), lock)


def test_wheels_become_a_toolkit_with_programs_that_run_and_the_usual_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        "bin/nvcc",
        "bin/crt/link.stub",
        "nvvm/bin/cicc",
        "lib/libcudart.so.13",
        "include/cuda.h",
    ]
    root = _assemble(tmp_path, monkeypatch, [f"nvidia/cu13/{m}" for m in members])
    assert os.access(root / "bin" / "nvcc", os.X_OK)
    assert os.access(root / "nvvm" / "bin" / "cicc", os.X_OK)
    assert (root / "lib64" / "libcudart.so").resolve() == (
        root / "lib" / "libcudart.so.13"
    ).resolve()
    assert (root / "include" / "cuda.h").is_file()


def test_wheels_without_nvcc_are_refused_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WheelError, match="no bin/nvcc"):
        _assemble(tmp_path, monkeypatch, ["nvidia/cu13/include/cuda.h"])
    assert not [
        p
        for p in (tmp_path / "cache" / "toolkit").iterdir()
        if not p.name.startswith(".") and p.is_dir()
    ]
