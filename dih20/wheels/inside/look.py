"""Say what an image is: python, compiler, torch build, package folder, NCCL folders. Prints JSON.

Runs under the image's own python, so it uses the standard library only and imports nothing of ours.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

_NCCL_NUMBER = re.compile(r"^#define\s+NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", re.MULTILINE)


def torch_build() -> str:
    """Give version, source commit and CUDA of the installed torch, read without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "none"
    values: dict[str, Any] = {}
    exec(Path(spec.origin).with_name("version.py").read_text(), values)
    commit = str(values.get("git_version") or "unknown")[:12]
    return f"{values['__version__']} git {commit} cuda {values.get('cuda') or 'none'}"


def first_line(*command: str) -> str:
    """Give the first line a command prints, or "none" when it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        return "none"
    return (done.stdout or done.stderr).splitlines()[0] if done.returncode == 0 else "none"


def nvcc_release(nvcc: str) -> str:
    """Give nvcc's release and build, as "13.0 V13.0.88", or "none"."""
    try:
        done = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (FileNotFoundError, PermissionError):
        return "none"
    found = re.search(r"release (\S+), (V\S+)", done.stdout)
    return f"{found[1]} {found[2]}" if found else "none"


def site_packages() -> str:
    """Give the folder that torch lies in, else the one that pip installs to."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent.parent)
    return sysconfig.get_path("purelib")


def nccl_folder(root: Path) -> dict[str, Any]:
    """Give what of NCCL one folder holds: library names under lib, the version in its header."""
    header = root / "include" / "nccl.h"
    numbers = (
        dict(_NCCL_NUMBER.findall(header.read_text(errors="replace"))) if header.is_file() else {}
    )
    version = (
        ".".join(numbers.get(key, "?") for key in ("MAJOR", "MINOR", "PATCH")) if numbers else ""
    )
    libraries = sorted(path.name for path in (root / "lib").glob("libnccl.so*"))
    return {
        "path": str(root),
        "libraries": libraries,
        "has_header": header.is_file(),
        "version": version,
    }


def nccl_folders() -> list[dict[str, Any]]:
    """Give every folder on the package path and the usual places that holds anything of NCCL."""
    roots = [Path(entry) / "nvidia" / "nccl" for entry in sys.path if entry]
    roots += [Path("/usr"), Path("/usr/local"), Path("/usr/local/nccl"), Path("/usr/local/cuda")]
    found = [nccl_folder(root) for root in dict.fromkeys(roots) if root.is_dir()]
    return [entry for entry in found if entry["libraries"] or entry["has_header"]]


def look() -> dict[str, Any]:
    major, minor = sys.version_info[:2]
    return {
        "python": platform.python_version(),
        "python_tag": f"cp{major}{minor}",
        "gcc": first_line("g++", "-dumpfullversion"),
        "glibc": platform.libc_ver()[1],
        "nvcc": nvcc_release("/usr/local/cuda/bin/nvcc"),
        "torch": torch_build(),
        "site_packages": site_packages(),
        "nccl": nccl_folders(),
    }


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
