"""Thinning empties other architectures' device code, and nothing else in the file."""

from __future__ import annotations

import struct

import pytest

from dih20.bundle.nccl import thinned
from dih20.errors import WheelError


def image(architecture: int, payload: bytes) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, 2, 1, 64, len(payload))
    struct.pack_into("<I", header, 28, architecture)
    return bytes(header) + payload


def container(*images: bytes) -> bytes:
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


HOST = b"\x7fELF host code "
LIBRARY = (
    HOST
    + container(image(80, b"A" * 100), image(90, b"B" * 100), image(100, b"C" * 100))
    + b"padding\0"
    + container(image(90, b"D" * 50))
    + HOST
)


def test_only_the_wanted_architecture_is_left() -> None:
    thin, kept, emptied = thinned(LIBRARY, "sm_90")
    assert (kept, emptied) == (2, 2)
    assert b"B" * 100 in thin and b"D" * 50 in thin
    assert b"A" * 100 not in thin and b"C" * 100 not in thin


def test_sizes_places_and_host_code_stay() -> None:
    thin, _, _ = thinned(LIBRARY, "sm_90")
    assert len(thin) == len(LIBRARY)
    assert thin.startswith(HOST) and thin.endswith(HOST) and b"padding" in thin
    assert thin.index(b"B" * 100) == LIBRARY.index(b"B" * 100)


def test_an_architecture_that_is_not_there_is_refused() -> None:
    with pytest.raises(WheelError, match="sm_70"):
        thinned(LIBRARY, "sm_70")


def test_bytes_that_only_look_like_a_container_stay() -> None:
    lookalike = struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 1 << 40) + b"E" * 100
    thin, _, _ = thinned(lookalike + LIBRARY, "sm_90")
    assert thin.startswith(lookalike)
