"""Which hosts a bundle is for, and which wheels fit them: pure judgement over made-up facts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from dih20.bundle.locked import glibc_for
from dih20.bundle.onhost.facts import HostFacts, judge, require_gpu
from dih20.bundle.onhost.vendor import fitting, must_build
from dih20.errors import PreflightFailed
from dih20.lock import LockedFile

GOOD = HostFacts(
    python="3.12.3", glibc="2.39", machine="x86_64", torch="2.11.0+cu130", torch_cuda="13.0", torch_fault="",
    gpus=1, gpu="NVIDIA H200", capability=(9, 0), nvcc="13.0", cuda_home="/usr/local/cuda", gcc="13.3.0",
    free_bytes=100 << 30,
)  # fmt: skip


def manifest(**changes: Any) -> dict[str, Any]:
    made = {
        "target": {"python_tag": "cp312", "glibc": "2.28", "torch_at_least": "2.11", "cuda": "13.0"},
        "groups": {"site": {"files": 1000}},
        "unpacked_bytes": 1 << 30,
        "nccl": {"version": "2.32.3", "thinned": None},
        "builds": [{"name": "deep_gemm"}],
        "vendor_wheels": [{"name": "deep_gemm", "torch": "2.11.0+cu130", "glibc": "2.38"}],
    }  # fmt: skip
    return made | changes


def faults(facts: HostFacts, *, compiling: bool = True, **changes: Any) -> list[str]:
    return judge(facts, manifest(**changes), compiling=compiling, unpacked=False)


def test_a_good_host_has_no_fault() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"python": "3.13.5"}, "Python 3.13.5"),
        ({"machine": "aarch64"}, "machine aarch64"),
        ({"glibc": "2.27"}, "glibc 2.27"),
        ({"glibc": ""}, "glibc unknown"),
        ({"torch": "2.10.1+cu130"}, "torch 2.10.1"),
        ({"torch_cuda": ""}, "without CUDA"),
        ({"torch_cuda": "12.9"}, "CUDA 12.9"),
        ({"torch_fault": "No module named 'torch'"}, "cannot be imported"),
        ({"nvcc": ""}, "no nvcc"),
        ({"nvcc": "12.8"}, "nvcc 12.8"),
        ({"nvcc": "13.1"}, "both must agree"),
        ({"gcc": ""}, r"no g\+\+"),
        ({"gcc": "12.2.0"}, r"g\+\+ 12.2.0"),
        ({"free_bytes": 1 << 30}, "GB free"),
    ],
)
def test_each_fault_is_named(change: dict[str, Any], words: str) -> None:
    found = faults(replace(GOOD, **change))
    assert len(found) == 1 and re.search(words, found[0]), found


def test_newer_versions_are_fine() -> None:
    assert (
        faults(replace(GOOD, torch="2.13.0+cu132", torch_cuda="13.2", glibc="2.41", gcc="15.1"))
        == []
    )


def test_another_cuda_matters_only_for_builds() -> None:
    assert faults(replace(GOOD, nvcc="13.1"), compiling=False) == []


def test_a_thinned_nccl_is_refused_on_another_gpu() -> None:
    thinned = {"version": "2.32.3", "thinned": {"architecture": "sm_90"}}
    assert faults(GOOD, nccl=thinned) == []
    blackwell = replace(GOOD, capability=(10, 0), gpu="NVIDIA B200")
    assert "thinned to sm_90" in faults(blackwell, nccl=thinned)[0]
    assert faults(blackwell) == []


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"torch": "2.11.1+cu130"}, True),
        ({"torch": "2.12.0+cu130"}, False),
        ({"torch_cuda": "12.9"}, False),
        ({"glibc": "2.36"}, False),
        ({"glibc": "2.38"}, True),
    ],
)
def test_a_wheel_fits_its_own_torch_cuda_and_c_library(change: dict[str, Any], fits: bool) -> None:
    facts = replace(GOOD, **change)
    assert (fitting(manifest(), "deep_gemm", facts) is not None) is fits
    assert must_build(manifest(), facts) == ([] if fits else ["deep_gemm"])


@pytest.mark.parametrize(
    ("change", "words"),
    [({"gpus": 0, "capability": ()}, "no GPU"), ({"capability": (8, 0)}, "no Hopper GPU")],
)
def test_engine_check_asks_for_hopper(change: dict[str, Any], words: str) -> None:
    require_gpu(GOOD)
    with pytest.raises(PreflightFailed, match=words):
        require_gpu(replace(GOOD, **change))


def locked(filename: str) -> LockedFile:
    return LockedFile(
        name="x", version="1", filename=filename, sha256="0" * 64, size_bytes=1, kind="wheel"
    )


def test_the_c_library_asked_for_is_what_every_wheel_can_use() -> None:
    names = [
        "a-1-py3-none-any.whl",
        "b-1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    ]
    assert glibc_for([locked(name) for name in names]) == "2.27"
    assert glibc_for([locked(names[0])]) == "2.17"
