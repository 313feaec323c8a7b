"""A link-time stand-in for libcuda, and the guard against ever finding one at run time.

The driver's library comes with the host's driver; a build without a GPU has only the toolkit's stub,
or none. Ours is made from the toolkit's own cuda.h: every cu* function of it, each returning
CUDA_ERROR_STUB_LIBRARY, under the SONAME libcuda.so.1. What links against it therefore needs
libcuda.so.1, which only the host's driver provides. The stub's file is named libcuda.so and lies in
a folder of the build container, so that no run-time search for libcuda.so.1 can meet it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from dih20.errors import WheelError

SONAME = "libcuda.so.1"
FOLDER = PurePosixPath("/build/stubs")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(
    r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w*)", re.MULTILINE
)
_RENAMED_PTSZ = re.compile(r"__CUDA_API_PT(SZ|DS)\((cu[A-Z]\w*)\)")


def function_names(cuda_h: str) -> list[str]:
    """Give every function that code compiled against this cuda.h may refer to."""
    names = set(_DECLARED.findall(cuda_h)) | set(_RENAMED.findall(cuda_h))
    for kind, name in _RENAMED_PTSZ.findall(cuda_h):
        names.add(f"{name}_pt{kind.lower()}")
    if not names:
        raise WheelError(
            found="cuda.h declares no cu* function",
            expected="the CUDA toolkit's header, from which the link-time stub is made",
            remedy="see that the toolkit is whole (./inv doctor)",
        )
    return sorted(names)


def stub_source(cuda_h: str) -> str:
    """Give the C source of the stub."""
    lines = [f"int {name}(void) {{ return {_STUB_LIBRARY}; }}" for name in function_names(cuda_h)]
    return (
        "/* Link-time stand-in for the driver library; made from cuda.h, never installed. */\n"
        + ("\n".join(lines) + "\n")
    )


def stub_folders(environment: Mapping[str, str]) -> list[str]:
    """Give the stubs folders that a run-time environment would search for libraries."""
    return [
        folder
        for variable in ("LD_LIBRARY_PATH", "LD_PRELOAD")
        for folder in re.split(r"[: ]", environment.get(variable, ""))
        if "stubs" in PurePosixPath(folder).parts
    ]


def refuse_stub_folders(environment: Mapping[str, str], where: str) -> None:
    """Raise when a run-time environment would find a stub in place of the driver."""
    found = stub_folders(environment)
    if found:
        raise WheelError(
            found=f"{where} searches {', '.join(found)} for libraries",
            expected="no stubs folder at run time: a stub found there takes the driver's place and every call fails",
            remedy="remove the folder from LD_LIBRARY_PATH; stubs are for linking only",
        )
