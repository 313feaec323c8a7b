"""Load machine code through the CUDA driver and launch it on torch's current stream.

Calls go to libcuda directly, so a host needs no C++ compiler and no extension module. A launch makes
no synchronising call and allocates nothing: it can be captured in a CUDA graph once the kernel is
loaded, which the first eager call does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from h20_ops.errors import CompileError, DependencyError, DeviceError
from h20_ops.jit.nvcc import CudaSource, compile_cuda

if TYPE_CHECKING:
    import torch

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class _LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16)]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("num_attributes", ctypes.c_uint32),
    ]


@lru_cache
def _libcuda() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DependencyError(
            f"libcuda.so.1 cannot be loaded: {error}",
            "the NVIDIA driver's library on the loader's path",
            "run on a host (or in a container started) with the NVIDIA driver",
        ) from error


def _check(code: int, what: str) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        _libcuda().cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise CompileError(
            f"{what} failed with CUDA error {code} ({reason})",
            "success on an SM90 device",
            "if an earlier kernel failed, run with CUDA_LAUNCH_BLOCKING=1 to find which",
        )


class Kernel:
    """One loaded kernel of one device; keep it, loading is slow and launching is not."""

    def __init__(self, function: ctypes.c_void_p, name: str, shared_bytes: int) -> None:
        self._function = function
        self.name = name
        self.shared_bytes = shared_bytes

    def launch(
        self,
        *,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        stream: int | None = None,
        cluster: Sequence[int] | None = None,
        programmatic: bool = False,
    ) -> None:
        """Launch on `stream` (a handle; default: torch's current stream of the current device).

        `args` are ctypes values in the kernel's order: `pointer(tensor)`, `ctypes.c_int(3)`, or a
        ctypes.Structure passed by value. `programmatic` lets the kernel start before the previous
        one on the stream ends; it must then execute griddepcontrol.wait itself.
        """
        import torch

        if stream is None:
            stream = torch.cuda.current_stream().cuda_stream
        attributes = (_LaunchAttribute * 2)()
        count = 0
        if cluster is not None:
            attributes[count].id = CLUSTER_DIMENSION
            attributes[count].value[0:3] = _three(cluster)
            count += 1
        if programmatic:
            attributes[count].id = PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[count].value[0] = 1
            count += 1
        config = _LaunchConfig(
            grid=(ctypes.c_uint32 * 3)(*_three(grid)),
            block=(ctypes.c_uint32 * 3)(*_three(block)),
            shared_bytes=self.shared_bytes,
            stream=stream,
            attributes=ctypes.cast(attributes, ctypes.POINTER(_LaunchAttribute)),
            num_attributes=count,
        )
        values = (ctypes.c_void_p * len(args))(*[ctypes.addressof(arg) for arg in args])
        code = _libcuda().cuLaunchKernelEx(ctypes.byref(config), self._function, values, None)
        _check(code, f"launch of {self.name} with grid {tuple(grid)}")


def _three(sizes: Sequence[int]) -> list[int]:
    assert 1 <= len(sizes) <= 3 and all(size > 0 for size in sizes), f"sizes {tuple(sizes)}"
    return [*sizes, 1, 1][:3]


def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    """The device address of a tensor as a kernel argument; None is passed as a null pointer."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def load_kernel(source: CudaSource, entry: str, *, shared_bytes: int = 0) -> Kernel:
    """Compile (or take from the cache) and load a kernel on torch's current device, once.

    `entry` is the kernel's name in the source, declared extern "C"; `shared_bytes` the dynamic
    shared memory of every launch.
    """
    import torch

    if not torch.cuda.is_available():
        raise DeviceError(
            "torch sees no CUDA device",
            "an SM90 device (H20, H100, H200)",
            "run on such a host; the plain-torch twins in h20_ops.torch_ref run anywhere",
        )
    defines = tuple(sorted(source.defines.items()))
    device = torch.cuda.current_device()
    return _load(source.name, source.path, defines, entry, shared_bytes, device)


@cache
def _load(name: str, path: Any, defines: Any, entry: str, shared_bytes: int, device: int) -> Kernel:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) != (9, 0):
        raise DeviceError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}",
            "9.0: the kernels use instructions of sm_90a, which no other device runs",
            "choose an SM90 device with CUDA_VISIBLE_DEVICES or torch.cuda.set_device",
        )
    artefact = compile_cuda(CudaSource(name, path, dict(defines)))
    torch.cuda.synchronize(device)  # makes torch create and enter the device's primary context
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    library = _libcuda()
    _check(library.cuModuleLoadData(ctypes.byref(module), artefact.read("kernel.cubin")), "load")
    code = library.cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
    _check(code, f"looking up {entry} in {artefact.path}")
    if shared_bytes > 48 * 1024:
        code = library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        _check(code, f"asking for {shared_bytes} bytes of shared memory for {entry}")
    return Kernel(function, entry, shared_bytes)
