"""The manifest and the parts: every missing or damaged part is named before anything is unpacked."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dih20.errors import HashMismatch, HostError, UsageError

FORMAT = 1
_CHUNK = 1 << 20


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest beside the parts."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise UsageError(
            found=f"no manifest.json in {folder}",
            expected="it beside run.sh and the parts",
            remedy="copy the whole folder that `inv bundle` wrote",
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        form = manifest["format"]
        assert isinstance(manifest["parts"], list) and manifest["whole"]["sha256"]
    except (ValueError, KeyError, TypeError, AssertionError) as fault:
        raise HashMismatch(
            found=f"{path} cannot be read: {fault!r}",
            expected="the manifest that `inv bundle` wrote",
            remedy="copy manifest.json again",
        ) from fault
    if form != FORMAT:
        raise UsageError(
            found=f"{path}: format {form}",
            expected=f"format {FORMAT}, which this run.sh reads",
            remedy="take run.sh and host/ from the same bundle",
        )
    return manifest


def check_parts(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise HashMismatch that names every part and script that is missing, cut short or damaged."""
    faults = [
        f"{name} is of another bundle, or was changed"
        for name, sha256 in manifest["tools"].items()
        if not (folder / name).is_file()
        or hashlib.sha256((folder / name).read_bytes()).hexdigest() != sha256
    ]
    whole = hashlib.sha256()
    for part in manifest["parts"]:
        path = folder / part["name"]
        if not path.is_file():
            faults.append(f"{part['name']} is missing")
            continue
        size = path.stat().st_size
        if size != part["size_bytes"]:
            faults.append(f"{part['name']} has {size} bytes of {part['size_bytes']}")
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
                whole.update(data)
        if digest.hexdigest() != part["sha256"]:
            faults.append(f"{part['name']} is damaged (sha256 {digest.hexdigest()[:12]}...)")
    if not faults and whole.hexdigest() != manifest["whole"]["sha256"]:
        faults.append(
            "each part is right and the whole is not: parts of two bundles, or their order"
        )
    if faults:
        raise HashMismatch(
            found="; ".join(faults),
            expected=f"{len(manifest['parts'])} parts as manifest.json lists them",
            remedy="copy these parts again; nothing was unpacked",
        )


class _Joined(io.RawIOBase):
    """Parts, read as one file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._left = list(paths)
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._file is None:
                if not self._left:
                    return 0
                self._file = self._left.pop(0).open("rb")
            if count := self._file.readinto(buffer):
                return count
            self._file.close()
            self._file = None


def unpack(folder: Path, manifest: dict[str, Any], into: Path) -> int:
    """Unpack all parts and give the number of files; the parts were checked before."""
    paths = [folder / part["name"] for part in manifest["parts"]]
    count = 0
    with lzma.open(io.BufferedReader(_Joined(paths), 1 << 20)) as plain:
        with tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                archive.extract(member, into, filter="data")
                count += 1
    expected = sum(group["files"] for group in manifest["groups"].values())
    if count != expected:
        raise HostError(
            found=f"{count} files in the parts",
            expected=f"{expected}, as the manifest says",
            remedy="make the bundle again",
        )
    return count
