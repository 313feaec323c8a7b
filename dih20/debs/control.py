"""Read the control file out of a .deb: an ar archive whose second member is a compressed tar."""

from __future__ import annotations

import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from dih20.debs.database import Package, parse_package
from dih20.errors import FetchError
from dih20.paths import shown

_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = 60  # name 16, date 12, owner 6, group 6, mode 8, size 10, end 2


def read_control(path: Path) -> Package:
    """Give what a .deb says of itself; FetchError for a file that is no Debian package."""
    try:
        with path.open("rb") as handle:
            text = _control_text(handle)
    except (OSError, ValueError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as fault:
        raise _not_a_deb(path, str(fault)) from fault
    package = parse_package(text)
    if package is None:
        raise _not_a_deb(path, "its control file names no package and version")
    return package


def _control_text(handle: BinaryIO) -> str:
    for name, size in _members(handle):
        if name.startswith("control.tar"):
            content = _unpacked(name, handle.read(size))
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
                for member in archive.getmembers():
                    if member.name.removeprefix("./") == "control":
                        found = archive.extractfile(member)
                        assert found is not None, "control is a file"
                        return found.read().decode("utf-8")
            raise ValueError(f"no file control in {name}")
        handle.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError("no member control.tar")


def _members(handle: BinaryIO) -> Iterator[tuple[str, int]]:
    """Give name and size of each member; the handle then stands at its content."""
    if handle.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as an ar archive")
    while len(header := handle.read(_HEADER)) == _HEADER:
        yield header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58])


def _unpacked(name: str, content: bytes) -> bytes:
    match name.rpartition(".")[2]:
        case "xz":
            return lzma.decompress(content)
        case "gz":
            return zlib.decompress(content, wbits=31)
        case "zst":
            import zstandard

            with zstandard.ZstdDecompressor().stream_reader(content) as reader:
                return reader.read()
        case "tar":
            return content
    raise ValueError(f"{name} is compressed in a way that this reader does not know")


def _not_a_deb(path: Path, why: str) -> FetchError:
    return FetchError(
        found=f"{shown(path)} cannot be read as a Debian package: {why}",
        expected="the package that the lock names",
        remedy="run `./inv fetch`, then the command again",
    )
