"""NCCL: which library a process like the engine's maps, and which version it says it is."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

from h20_probe.mapped import mapped_files
from h20_probe.problems import Problem


def describe() -> dict[str, Any]:
    """Import torch where it is installed, then load libnccl.so.2 by name, and say what is mapped."""
    torch_build = None
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch_build = (
            f"{torch.__version__} ({torch.version.git_version[:12]}, CUDA {torch.version.cuda})"
        )
    mapped = mapped_files("libnccl.so")
    try:
        library = ctypes.CDLL(mapped[0] if mapped else "libnccl.so.2")
    except OSError as error:
        why = "torch does not map one and " if torch_build else ""
        return {"torch": torch_build, "libnccl": [], "version": None, "note": f"{why}{error}"}
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    return {
        "torch": torch_build,
        "libnccl": mapped_files("libnccl.so"),
        "version": version_text(number.value),
    }


def version_text(number: int) -> str:
    """Give 23203 as 2.32.3; up to 2.8 NCCL counted in thousands, from 2.9 on in ten thousands."""
    if number < 10000:
        return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def problems(seen: dict[str, Any], expected: str | None) -> list[Problem]:
    """Judge what is mapped: exactly one file, of the expected version when one is given."""
    found: list[Problem] = []
    if len(seen["libnccl"]) > 1:
        found.append(
            Problem(
                check="nccl",
                found=f"{len(seen['libnccl'])} NCCL libraries in one process: {', '.join(seen['libnccl'])}",
                expected="exactly one",
                next="remove the one that LD_LIBRARY_PATH or LD_PRELOAD adds beside torch's",
            )
        )
    if expected and seen["version"] != expected:
        where = ", ".join(seen["libnccl"]) or "nowhere"
        found.append(
            Problem(
                check="nccl",
                found=f"NCCL {seen['version'] or 'none'}, mapped from {where}",
                expected=f"NCCL {expected} (--expect-nccl)",
                next="rebuild the image from the NCCL step: a later pip install put another one back",
            )
        )
    return found
