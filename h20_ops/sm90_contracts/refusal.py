"""How a contract is refused: the call, the argument, its value, and what SM90 takes instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from h20_ops.errors import DependencyError, DeviceError, UnsupportedError

if TYPE_CHECKING:
    import torch

SOURCE = "SM90 (compute capability 9.0), DeepGEMM 2.8.2"


def refuse(call: str, argument: str, found: object, wanted: str, advice: str) -> NoReturn:
    """Raise UnsupportedError for one argument of one call."""
    raise UnsupportedError(f"{call}: {argument} is {found}", f"{wanted} on {SOURCE}", advice)


def want_dtype(call: str, argument: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        refuse(
            call, f"{argument}.dtype", tensor.dtype, f"{dtype}", f"convert {argument} to {dtype}"
        )


def want_shape(call: str, argument: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        refuse(
            call,
            f"{argument}.shape",
            tuple(tensor.shape),
            f"{tuple(shape)}",
            "compare the shapes of all arguments with the layer's configuration",
        )


def want_rows(call: str, argument: str, tensor: torch.Tensor, *, multiple_of_bytes: int) -> None:
    """Refuse rows that are not contiguous or do not start on a multiple of some bytes."""
    strides = tensor.stride()
    row_bytes = strides[-2] * tensor.element_size() if tensor.dim() > 1 else 0
    if tensor.shape[-1] > 1 and strides[-1] != 1:
        refuse(call, f"{argument}.stride()", strides, "a contiguous last dimension", "copy it")
    if tensor.dim() > 1 and tensor.shape[-2] > 1 and row_bytes % multiple_of_bytes:
        refuse(
            call,
            f"{argument}.stride()",
            f"{strides}, {row_bytes} bytes a row",
            f"a row stride that is a multiple of {multiple_of_bytes} bytes",
            f"allocate {argument} with padded rows and pass the slice",
        )


def deep_gemm_on(call: str, tensor: torch.Tensor) -> Any:
    """Give the deep_gemm package for tensors on an SM90 device; the last step before its kernel."""
    import torch

    if tensor.device.type != "cuda":
        raise DeviceError(
            f"{call}: tensors on {tensor.device}",
            "tensors on an SM90 device (H20, H100, H200)",
            "move them there",
        )
    capability = torch.cuda.get_device_capability(tensor.device)
    if capability != (9, 0):
        raise DeviceError(
            f"{call}: a device of compute capability {capability[0]}.{capability[1]}",
            "9.0: these are the contracts of the SM90 kernels",
            "call deep_gemm itself on other devices",
        )
    try:
        import deep_gemm  # type: ignore[import-not-found]
    except ImportError as fault:
        raise DependencyError(
            f"{call}: deep_gemm cannot be imported: {fault}",
            "the deep_gemm wheel in this environment",
            "build it with ./inv build-vendor --only deep_gemm and install it",
        ) from fault
    return deep_gemm
