"""NCCL as an overlay of its own: put first on PYTHONPATH, torch and DeepEP find it and no other.

--thin-nccl empties the device code of every architecture but one. Sizes and places in the file
stay; what is emptied compresses to nothing, and cannot run.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dih20.bundle.entries import Entry, of_bytes, of_wheel
from dih20.errors import WheelError
from dih20.fetch import cached
from dih20.lock import LockedFile

GROUP = "site-nccl"
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
_MAGIC = struct.pack("<I", 0xBA55ED50)


def nccl_entries(wheel: LockedFile) -> Iterator[Entry]:
    """Give the overlay with the library whole; device libraries for other compilers stay out."""
    yield from of_wheel(GROUP, cached(wheel), keep=_is_needed)


def thin_nccl_entries(wheel: LockedFile, architecture: str) -> tuple[list[Entry], dict[str, Any]]:
    """Give the overlay with one architecture's device code, and what was done for the manifest."""
    path = cached(wheel)
    with zipfile.ZipFile(path) as archive:
        whole = archive.read(LIBRARY)
    thin, kept, emptied = thinned(whole, architecture)
    others = list(of_wheel(GROUP, path, keep=lambda name: _is_needed(name) and name != LIBRARY))
    done = {
        "architecture": architecture,
        "images_kept": kept,
        "images_emptied": emptied,
        "whole_sha256": hashlib.sha256(whole).hexdigest(),
    }
    return [*others, of_bytes(f"{GROUP}/{LIBRARY}", thin)], done


def library_hash(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return hashlib.sha256(archive.read(LIBRARY)).hexdigest()


def _is_needed(name: str) -> bool:
    return not name.endswith((".bc", ".ltoir"))


def thinned(library: bytes, architecture: str) -> tuple[bytes, int, int]:
    """Give the library with other architectures' images emptied, and how many stayed and went.

    A fatbin container is magic u32, version u16, header size u16, size of its images u64; each
    image has a header of its own: header size u32 at 4, size u64 at 8, architecture u32 at 28.
    """
    wanted = int(architecture.removeprefix("sm_"))
    data = bytearray(library)
    kept = emptied = 0
    at = data.find(_MAGIC)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + size
        if version != 1 or header != 16 or end > len(data):
            at = data.find(_MAGIC, at + 4)
            continue
        image = at + header
        while image + 48 <= end:
            image_header, payload = struct.unpack_from("<IQ", data, image + 4)
            (number,) = struct.unpack_from("<I", data, image + 28)
            if not image_header or image + image_header + payload > end:
                break
            if number == wanted:
                kept += 1
            else:
                start = image + image_header
                data[start : start + payload] = bytes(payload)
                emptied += 1
            image += image_header + payload
        at = data.find(_MAGIC, end)
    if not kept:
        raise WheelError(
            found=f"{LIBRARY} holds no device code for {architecture}, in {emptied} images",
            expected="the architecture of --thin-nccl among them",
            remedy="correct --thin-nccl, or leave it out: then NCCL is whole",
        )
    return bytes(data), kept, emptied
