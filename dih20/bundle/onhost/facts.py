"""This host: Python, torch, CUDA, C library, compilers, GPU, space. Gathered once, judged purely."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dih20.errors import PreflightFailed

_TORCH = """
import json, torch
gpus = torch.cuda.device_count() if torch.version.cuda else 0
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus}
if gpus:
    facts["gpu"] = torch.cuda.get_device_name(0)
    facts["capability"] = list(torch.cuda.get_device_capability(0))
print("FACTS" + json.dumps(facts))
"""
OLDEST_NVCC, OLDEST_GCC = (12, 9), 13
PER_FILE = 4096  # small files take a block each


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What was found; an empty text or None is "not there"."""

    python: str
    glibc: str
    machine: str
    torch: str
    torch_cuda: str
    torch_fault: str
    gpus: int
    gpu: str
    capability: tuple[int, ...]
    nvcc: str
    cuda_home: str
    gcc: str
    free_bytes: int
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "python": self.python, "glibc": self.glibc, "torch": self.torch, "torch_cuda": self.torch_cuda,
            "gpu": self.gpu, "capability": list(self.capability), "nvcc": self.nvcc, "gcc": self.gcc,
        }  # fmt: skip


def gather(place: Path) -> HostFacts:
    """Ask this host; nothing is changed and no GPU is reserved."""
    found, fault = _torch()
    home = cuda_home()
    free = shutil.disk_usage(_existing(place)).free
    return HostFacts(
        python=platform.python_version(),
        glibc=platform.libc_ver()[1],
        machine=platform.machine(),
        torch=str(found.get("version", "")),
        torch_cuda=str(found.get("cuda") or ""),
        torch_fault=fault,
        gpus=int(found.get("gpus", 0)),
        gpu=str(found.get("gpu", "")),
        capability=tuple(found.get("capability", ())),
        nvcc=_release([str(Path(home, "bin", "nvcc")), "--version"], r"release ([\d.]+)") if home else "",
        cuda_home=home,
        gcc=_release([os.environ.get("CXX", "g++"), "-dumpfullversion"], r"^([\d.]+)"),
        free_bytes=free,
    )  # fmt: skip


def cuda_home() -> str:
    """Give the CUDA toolkit: CUDA_HOME, nvcc on PATH, else the usual folder; empty without one."""
    given = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc")
    places = [given, str(Path(nvcc).resolve().parent.parent) if nvcc else None, "/usr/local/cuda"]
    return next((p for p in places if p and Path(p, "bin", "nvcc").is_file()), "")


def _existing(place: Path) -> Path:
    return next(p for p in (place, *place.parents) if p.exists())


def _torch() -> tuple[Mapping[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False, cwd="/"
    )
    line = next((t for t in done.stdout.splitlines() if t.startswith("FACTS")), "")
    if done.returncode == 0 and line:
        return json.loads(line.removeprefix("FACTS")), ""
    return {}, (done.stderr.strip().splitlines() or ["no output"])[-1]


def _release(command: list[str], pattern: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, done.stdout, re.MULTILINE)
    return found[1] if done.returncode == 0 and found else ""


def numbers(version: str) -> tuple[int, ...]:
    """Give the numbers at the start of a version: 2.11.0+cu130 is (2, 11, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))


def judge(facts: HostFacts, manifest: Mapping[str, Any], *, compiling: bool, unpacked: bool) -> list[str]:  # fmt: skip
    """Give every reason why the bundle cannot be used here; none when it can."""
    target = manifest["target"]
    faults = []
    python = ".".join(facts.python.split(".")[:2])
    tag = f"cp{python.replace('.', '')}"
    if tag != target["python_tag"]:
        faults.append(
            f"Python {facts.python}; the bundle's packages are for {target['python_tag']}"
        )
    if facts.machine != "x86_64":
        faults.append(f"machine {facts.machine}; the bundle is for x86_64")
    if numbers(facts.glibc) < numbers(target["glibc"]):
        faults.append(
            f"glibc {facts.glibc or 'unknown'}; the bundle's packages may need {target['glibc']}"
        )
    faults += _torch_faults(facts, target)
    if not facts.nvcc:
        faults.append(
            "no nvcc (CUDA_HOME, PATH, /usr/local/cuda); kernels are compiled at run time"
        )
    elif numbers(facts.nvcc) < OLDEST_NVCC:
        faults.append(f"nvcc {facts.nvcc}; 12.9 or newer compiles DeepGEMM's kernels")
    if compiling:
        faults += _compiler_faults(facts, target)
    faults += _thinning_faults(facts, manifest)
    files = sum(group["files"] for group in manifest["groups"].values())
    needed = 0 if unpacked else manifest["unpacked_bytes"] + files * PER_FILE
    needed += 3 << 30 if compiling else 256 << 20
    if facts.free_bytes < needed:
        faults.append(f"{facts.free_bytes / 1e9:.1f} GB free; {needed / 1e9:.1f} GB needed")
    return faults


def _torch_faults(facts: HostFacts, target: Mapping[str, Any]) -> list[str]:
    if facts.torch_fault:
        return [f"torch cannot be imported by {sys.executable}: {facts.torch_fault}"]
    faults = []
    if numbers(facts.torch) < numbers(target["torch_at_least"]):
        faults.append(f"torch {facts.torch}; {target['torch_at_least']} or newer is needed")
    if not facts.torch_cuda:
        faults.append(f"torch {facts.torch} is built without CUDA")
    elif numbers(facts.torch_cuda)[:1] != numbers(target["cuda"])[:1]:
        faults.append(
            f"torch is built for CUDA {facts.torch_cuda}; the bundle is for CUDA {target['cuda']}"
        )
    return faults  # fmt: skip


def _compiler_faults(facts: HostFacts, target: Mapping[str, Any]) -> list[str]:
    faults = []
    if not facts.gcc:
        faults.append("no g++ (CXX, PATH); vendor wheels have to be built here")
    elif numbers(facts.gcc)[0] < OLDEST_GCC:
        faults.append(
            f"g++ {facts.gcc}; {OLDEST_GCC} or newer has the std::format that the vendors use"
        )
    if numbers(facts.nvcc) >= OLDEST_NVCC and facts.nvcc != target["cuda"]:
        faults.append(
            f"nvcc {facts.nvcc}; the bundle's headers are of CUDA {target['cuda']}, and both must agree to build"
        )
    return faults  # fmt: skip


def _thinning_faults(facts: HostFacts, manifest: Mapping[str, Any]) -> list[str]:
    thinned = (manifest.get("nccl") or {}).get("thinned")
    if not thinned or not facts.gpus:
        return []
    here = "sm_" + "".join(str(number) for number in facts.capability)
    if here == thinned["architecture"]:
        return []
    return [f"{facts.gpu} is {here}; NCCL of this bundle was thinned to {thinned['architecture']}"]


def require(faults: list[str]) -> None:
    if faults:
        raise PreflightFailed(
            found="\n  ".join(["this host cannot run the bundle:", *faults]),
            expected="the host that docs/bundle.md describes",
            remedy="mend the above (PYTHON=/path/to/python3 names another Python), then run the same command again",
        )


def require_gpu(facts: HostFacts) -> None:
    """Raise when there is no Hopper GPU to check the engine on."""
    if facts.gpus and facts.capability[:1] == (9,):
        return
    what = f"{facts.gpu}, compute capability {'.'.join(map(str, facts.capability))}"
    raise PreflightFailed(
        found="no GPU: torch sees no CUDA device" if not facts.gpus else f"no Hopper GPU: {what}",
        expected="an H20, H100 or H200 (compute capability 9.0) and its driver",
        remedy="see that nvidia-smi lists it and CUDA_VISIBLE_DEVICES does not hide it; everything else is installed",
    )
