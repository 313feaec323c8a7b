"""The CUDA driver: does cuInit succeed, which file is mapped, which devices does it list."""

from __future__ import annotations

import ctypes
from typing import Any

from h20_probe.mapped import mapped_files
from h20_probe.problems import Problem

LIBRARY = "libcuda.so.1"
_CC_MAJOR, _CC_MINOR, _SM_COUNT = 75, 76, 16  # CUdevice_attribute numbers

# cuInit results that people meet, with what to look at first.
_HINTS = {
    3: (
        "CUDA_ERROR_NOT_INITIALIZED",
        "load the kernel driver on the host (`nvidia-smi` there must work)",
    ),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        "a link-time stub was loaded as the driver: remove the stubs folder from LD_LIBRARY_PATH",
    ),
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process holds the GPU exclusively: see `nvidia-smi`",
    ),
    100: (
        "CUDA_ERROR_NO_DEVICE",
        "start the container with GPUs (`--gpus all`), and see that CUDA_VISIBLE_DEVICES is not empty",
    ),
    101: ("CUDA_ERROR_INVALID_DEVICE", "see that CUDA_VISIBLE_DEVICES names GPUs that exist"),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        (
            "the NVSwitch fabric is not ready although nvidia-smi may list every GPU: on the host run "
            "`systemctl status nvidia-fabricmanager` and see that its version equals the driver's exactly"
        ),
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel driver and libcuda differ: a driver update without a reboot, or a libcuda inside the image",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "a compat libcuda of the image is loaded: remove it from LD_LIBRARY_PATH or update the driver",
    ),
    999: ("CUDA_ERROR_UNKNOWN", "see the host's kernel log for NVRM and Xid lines"),
}


def open_driver() -> ctypes.CDLL:
    """Load the driver library as any CUDA program would."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise Problem(
            check="driver",
            found=f"{LIBRARY} cannot be loaded: {error}",
            expected="the host's driver library, which the container runtime mounts into a GPU container",
            next="start the container with GPUs (nvidia container toolkit, `--gpus all`); on the bare host "
            "install the NVIDIA driver",
            stops=True,
        ) from None


def start(cuda: ctypes.CDLL) -> None:
    """Call cuInit; a failure is named, with the usual cause."""
    code = int(cuda.cuInit(0))
    if code == 0:
        return
    name, hint = _HINTS.get(
        code, (_error_name(cuda, code), "see the host's kernel log, then `nvidia-smi -q`")
    )
    raise Problem(
        check="driver",
        found=f"cuInit returned {code} ({name}); mapped: {', '.join(mapped_files('libcuda.so')) or 'no libcuda'}",
        expected="0 (CUDA_SUCCESS)",
        next=hint,
        stops=True,
    )


def _error_name(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    try:
        status = cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
    except AttributeError:
        return "unnamed"
    return text.value.decode() if status == 0 and text.value else "unnamed"


def describe(cuda: ctypes.CDLL) -> dict[str, Any]:
    """Give the driver's API version, its mapped file and the devices it lists."""
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    return {
        "cuInit": 0,
        "cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "kernel_driver": _kernel_driver(),
        "libcuda": mapped_files("libcuda.so"),
        "devices": [_device(cuda, index) for index in range(count.value)],
    }


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    name = ctypes.create_string_buffer(128)
    memory = ctypes.c_size_t()
    values = {}
    for key, number in (("major", _CC_MAJOR), ("minor", _CC_MINOR), ("sms", _SM_COUNT)):
        value = ctypes.c_int()
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), number, index)
        values[key] = value.value
    _call(cuda, "cuDeviceGetName", name, len(name), index)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), index)
    return {
        "index": index,
        "name": name.value.decode(),
        "compute_capability": f"{values['major']}.{values['minor']}",
        "multiprocessors": values["sms"],
        "memory_bytes": memory.value,
    }


def _kernel_driver() -> str | None:
    """Give the kernel module's version, or None where the host does not show it."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:  # noqa: PTH123
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _call(cuda: ctypes.CDLL, function: str, *arguments: Any) -> None:
    code = int(getattr(cuda, function)(*arguments))
    if code != 0:
        raise Problem(
            check="driver",
            found=f"{function} returned {code} ({_error_name(cuda, code)})",
            expected="0 (CUDA_SUCCESS)",
            next="see the host's kernel log, then `nvidia-smi -q`",
            stops=True,
        )
