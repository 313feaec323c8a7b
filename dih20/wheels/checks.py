"""Checks for `inv doctor`: what builds need on this machine when the base has no toolkit of its own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dih20.doctor.registry import Finding, Subject, check
from dih20.hosts.runner import Runner

OLDEST_NVCC = (12, 9)
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_fp8.h", "crt/host_config.h")


@check("nvcc", where="local")
def nvcc_is_new_enough(subject: Subject) -> Iterator[Finding]:
    """nvcc >= 12.9 for nvcc-marked tests and for compiling operators on this machine."""
    program = toolkit_root() / "bin" / "nvcc"
    result = subject.runner.run([str(program), "--version"], check=False)
    found = _RELEASE.search(result.text)
    remedy = "install a CUDA toolkit and set CUDA_HOME; image and wheel builds bring their own from the lock"
    if not found:
        yield Finding.warn(f"no nvcc at {program}", expected="nvcc >= 12.9", remedy=remedy)
    elif (int(found[1]), int(found[2])) < OLDEST_NVCC:
        yield Finding.fail(
            f"nvcc {found[1]}.{found[2]} at {program}", expected="nvcc >= 12.9", remedy=remedy
        )
    else:
        yield Finding.ok(f"nvcc {found[1]}.{found[2]} at {program}")


@check("toolkit headers", where="local")
def toolkit_headers_are_there(subject: Subject) -> Iterator[Finding]:
    """The headers that kernels include, where the toolkit is."""
    include = toolkit_root() / "include"
    missing = [name for name in _HEADERS if not (include / name).is_file()]
    cccl = [include / "cccl", include]  # CUDA 13 moved it one folder down
    if not any((folder / "cuda" / "std" / "utility").is_file() for folder in cccl):
        missing.append("cuda/std/utility (CCCL)")
    if missing:
        yield Finding.warn(
            f"{include} lacks {', '.join(missing)}",
            expected="a toolkit with its development headers",
            remedy="install the toolkit's development packages, or set CUDA_HOME to a whole toolkit",
        )
    else:
        yield Finding.ok(f"{len(_HEADERS) + 1} headers in {include}")


@check("C++ compiler", where="local")
def compiler_is_there(subject: Subject) -> Iterator[Finding]:
    """g++ >= 13 builds C++20 vendors; what is needed inside the image, the image brings."""
    version = _gcc_version(subject.runner)
    if version is None:
        yield Finding.warn(
            "no g++ on the PATH",
            expected="g++, for tests that compile small libraries",
            remedy="install g++ (Debian, Ubuntu: apt-get install g++)",
        )
    else:
        yield Finding.ok(f"g++ {version}")


def toolkit_root() -> Path:
    """Give the toolkit of this machine: CUDA_HOME, CUDA_PATH, nvcc's on the PATH, the usual place."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            return Path(home)
    usual = Path("/usr/local/cuda")
    if not (usual / "bin" / "nvcc").is_file() and (program := shutil.which("nvcc")):
        return Path(program).resolve().parent.parent
    return usual


def _gcc_version(runner: Runner) -> str | None:
    result = runner.run(["g++", "-dumpfullversion"], check=False)
    return result.text.strip() if result.ok else None
