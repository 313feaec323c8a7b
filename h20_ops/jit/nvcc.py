"""Compile a CUDA source to machine code for sm_90a and read the assembler's resource report."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from h20_ops.errors import CompileError
from h20_ops.jit.cache import Artefact, get_or_build, hash_parts

# wgmma and setmaxnreg exist only in the sm_90a target; the -arch shorthand also runs a plain
# sm_90 pass with some compilers, which rejects them.
TARGET = "-gencode=arch=compute_90a,code=sm_90a"
FLAGS = (TARGET, "-cubin", "-O3", "-std=c++17", "-lineinfo", "-Xptxas=-v")
LOCAL_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FUNCTION = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, kw_only=True)
class PtxasReport:
    """What the assembler says about one kernel; all sizes in bytes."""

    entry: str
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class CudaSource:
    """A kernel's source file and the constants it is compiled with.

    Files it includes with quotes are looked up beside it and count as part of the source.
    """

    name: str
    path: Path
    defines: Mapping[str, int | str] = field(default_factory=dict)

    def key(self) -> str:
        """Hash of all source text and constants; equal keys mean interchangeable machine code."""
        texts = [text for _, text in sorted(self.files().items())]
        constants = [f"{name}={value}" for name, value in sorted(self.defines.items())]
        return hash_parts(*texts, *constants, *FLAGS)

    def files(self) -> dict[str, str]:
        """Text of the source and of every local header it reaches, by file name."""
        texts: dict[str, str] = {}
        waiting = [self.path.name]
        while waiting:
            name = waiting.pop()
            if name not in texts:
                texts[name] = (self.path.parent / name).read_text()
                waiting += LOCAL_INCLUDE.findall(texts[name])
        return texts


def find_nvcc() -> Path | None:
    """nvcc of `CUDA_HOME`, of PATH, or of /usr/local/cuda; None if there is none."""
    home = os.environ.get("CUDA_HOME")
    candidates = [Path(home, "bin", "nvcc")] if home else []
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((path for path in candidates if path.is_file()), None)


@lru_cache
def nvcc_version(nvcc: Path) -> str:
    """The release line of `nvcc --version`, such as 'Cuda compilation tools, release 13.0, ...'."""
    done = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "release" in line]
    if done.returncode != 0 or not lines:
        raise CompileError(
            f"{nvcc} --version left with code {done.returncode}: {done.stdout + done.stderr}",
            "a line with nvcc's release",
            "repair that installation, or point CUDA_HOME at another",
        )
    return lines[0]


def compile_cuda(source: CudaSource) -> Artefact:
    """Return the artefact (`kernel.cubin`, `ptxas.txt`) of a source, from the cache if it is there."""
    nvcc = find_nvcc()
    return get_or_build(
        source.name,
        source.key(),
        nvcc_version(nvcc) if nvcc else None,
        lambda: _run_nvcc(_required(nvcc), source),
    )


def ptxas_reports(artefact: Artefact) -> list[PtxasReport]:
    """Read the resource report that was kept beside the machine code, one entry per kernel."""
    text = artefact.read("ptxas.txt").decode()
    sections = list(FUNCTION.finditer(text))
    ends = [section.start() for section in sections[1:]] + [len(text)]
    reports = []
    for section, end in zip(sections, ends, strict=True):
        spills, used = (
            SPILLS.search(text, section.end(), end),
            USED.search(text, section.end(), end),
        )
        if spills is None or used is None:
            raise CompileError(
                f"no resource lines for {section[1]} in {artefact.path / 'ptxas.txt'}",
                "'bytes stack frame' and 'Used N registers' lines, as nvcc 12 and 13 print them",
                "delete that folder and compile again; report the nvcc version if it persists",
            )
        stack, stores, loads = (int(number) for number in spills.groups())
        reports.append(
            PtxasReport(
                entry=section[1],
                arch=section[2],
                registers=int(used[1]),
                stack_bytes=stack,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
            )
        )
    return reports


def _required(nvcc: Path | None) -> Path:
    assert nvcc is not None, "get_or_build builds only where a toolchain was named"
    return nvcc


def _run_nvcc(nvcc: Path, source: CudaSource) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="h20_ops-") as scratch:
        cubin = Path(scratch) / "kernel.cubin"
        defines = [f"-D{name}={value}" for name, value in sorted(source.defines.items())]
        command = [str(nvcc), *FLAGS, *defines, "-o", str(cubin), str(source.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = done.stdout + done.stderr
        if done.returncode != 0:
            raise CompileError(
                f"nvcc left with code {done.returncode} on {source.path.name}:\n{report[-4000:]}",
                f"machine code for sm_90a ({nvcc_version(nvcc)})",
                "check that nvcc is 12.4 or newer and has a host compiler it accepts",
            )
        return {"kernel.cubin": cubin.read_bytes(), "ptxas.txt": report.encode()}
