"""Descriptor for tensor copies of eight rows of 128 bytes, made by the CUDA driver."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from h20_ops.errors import DependencyError

ROW_BYTES = 128
ROWS_OF_A_COPY = 8
MAP_BYTES = 128
UINT8 = 0  # CUtensorMapDataType
NO_INTERLEAVE = 0
SWIZZLE_128B = 3
PROMOTE_128B = 2
ZEROS_OUTSIDE = 0
_ALIGNMENT = 64


@lru_cache
def _encode() -> ctypes._NamedFuncPointer:
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise DependencyError(
            f"cuTensorMapEncodeTiled is not to be had: {error}",
            "the NVIDIA driver's library of CUDA 12 or newer on the loader's path",
            "update the driver of this host",
        ) from error


def row_map(address: int, rows: int) -> ctypes.Array[ctypes.c_uint8]:
    """Return the 128 bytes that describe (rows, 128) contiguous bytes at a device address.

    A copy brings 8 rows, from any row on, into the 128-byte swizzle; rows behind the last are zeros.
    """
    space = (ctypes.c_uint8 * (MAP_BYTES + _ALIGNMENT))()
    skip = -ctypes.addressof(space) % _ALIGNMENT
    described = (ctypes.c_uint8 * MAP_BYTES).from_buffer(space, skip)
    code = _encode()(
        ctypes.byref(described),
        ctypes.c_int(UINT8),
        ctypes.c_uint32(2),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(ROW_BYTES, rows),
        (ctypes.c_uint64 * 1)(ROW_BYTES),
        (ctypes.c_uint32 * 2)(ROW_BYTES, ROWS_OF_A_COPY),
        (ctypes.c_uint32 * 2)(1, 1),
        ctypes.c_int(NO_INTERLEAVE),
        ctypes.c_int(SWIZZLE_128B),
        ctypes.c_int(PROMOTE_128B),
        ctypes.c_int(ZEROS_OUTSIDE),
    )
    assert code == 0, f"cuTensorMapEncodeTiled of {rows} rows at {address:#x}: CUDA error {code}"
    return described
