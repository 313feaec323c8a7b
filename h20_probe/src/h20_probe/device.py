"""What a device does: run our sm_90a kernel, and copy memory, through the compiled library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from h20_probe.problems import Problem

LIBRARY = Path(__file__).with_name("libh20_probe.so")
KERNEL_WORDS = 1 << 22
COPIES = {"device_to_device": 0, "host_to_device": 1, "device_to_host": 2}
_NO_KERNEL_IMAGE = 209
_MIB = 1 << 20


def open_library(path: Path = LIBRARY) -> ctypes.CDLL:
    """Load the compiled part of this package."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Problem(
            check="library",
            found=f"{path.name} cannot be loaded: {error}",
            expected="the library that the h20_probe wheel carries",
            next="install the wheel (`./inv build-vendor --only h20_probe`), not the source folder",
            stops=True,
        ) from None
    library.h20_probe_error_name.restype = ctypes.c_char_p
    return library


def runtime_version(library: ctypes.CDLL) -> str:
    """Give the CUDA runtime version that is linked into the library, as "13.0"."""
    driver, runtime = ctypes.c_int(), ctypes.c_int()
    _checked(
        library,
        0,
        "versions",
        library.h20_probe_versions(ctypes.byref(driver), ctypes.byref(runtime)),
    )
    return f"{runtime.value // 1000}.{runtime.value % 1000 // 10}"


def run_kernel(library: ctypes.CDLL, device: int, seed: int = 20) -> dict[str, Any]:
    """Run the sm_90a kernel and compare every word with the value computed on the host."""
    wrong = ctypes.c_uint64()
    code = library.h20_probe_kernel(
        device, ctypes.c_uint32(KERNEL_WORDS), ctypes.c_uint32(seed), ctypes.byref(wrong)
    )
    _checked(library, device, "kernel", code)
    if wrong.value:
        raise Problem(
            check="kernel",
            found=f"device {device}: {wrong.value} of {KERNEL_WORDS} words are wrong",
            expected="all words equal to the host's",
            next="take this GPU out of service and see `nvidia-smi -q -d ECC,ROW_REMAPPER`",
        )
    return {"words": KERNEL_WORDS, "wrong": 0, "architecture": "sm_90a"}


def copy_bandwidth(
    library: ctypes.CDLL, device: int, *, mib: int = 1024, repeats: int = 20
) -> dict[str, dict[str, Any]]:
    """Measure each kind of copy: the median of repeats, in GB/s (1e9).

    Device-to-device counts the bytes read and the bytes written; the other two count the bytes moved.
    """
    result: dict[str, dict[str, Any]] = {}
    for name, kind in COPIES.items():
        size = (mib if kind == 0 else max(1, mib // 4)) * _MIB
        milliseconds = ctypes.c_float()
        code = library.h20_probe_copy_ms(
            device, ctypes.c_uint64(size), kind, repeats, ctypes.byref(milliseconds)
        )
        _checked(library, device, f"copy {name}", code)
        moved = size * (2 if kind == 0 else 1)
        result[name] = {
            "bytes": size,
            "repeats": repeats,
            "median_ms": round(milliseconds.value, 4),
            "gbps": round(moved / milliseconds.value / 1e6, 1),
        }
    return result


def _checked(library: ctypes.CDLL, device: int, what: str, code: int) -> None:
    if code == 0:
        return
    name = (library.h20_probe_error_name(code) or b"unnamed").decode()
    hint = "see the host's kernel log for Xid lines"
    if code == _NO_KERNEL_IMAGE:
        hint = "this GPU is not of compute capability 9.0; the library holds sm_90a code only"
    raise Problem(
        check=what,
        found=f"device {device}: CUDA runtime error {code} ({name})",
        expected="success",
        next=hint,
    )
