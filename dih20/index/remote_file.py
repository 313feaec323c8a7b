"""Read parts of a file at an index: a wheel's metadata without the wheel, a small sdist in memory."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dih20.errors import FetchError
from dih20.index.session import plain_reason
from dih20.index.simple import IndexFile

if TYPE_CHECKING:
    import requests


class _RangeReader(io.RawIOBase):
    """A seekable file over HTTP Range requests, read in blocks that are kept."""

    _BLOCK = 1 << 16

    def __init__(self, session: requests.Session, url: str, size: int, timeout_s: float) -> None:
        self._session, self._url, self._size, self._timeout_s = session, url, size, timeout_s
        self._at = 0
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # typeshed's WriteableBuffer is private
        number, offset = divmod(self._at, self._BLOCK)
        if self._at >= self._size:
            return 0
        part = self._block(number)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * self._BLOCK
            end = min(start + self._BLOCK, self._size)
            headers = {"Range": f"bytes={start}-{end - 1}"}
            answer = self._session.get(self._url, headers=headers, timeout=self._timeout_s)
            if answer.status_code != 206 or len(answer.content) != end - start:
                raise OSError(f"a Range request was answered with {answer.status_code}")
            self._blocks[number] = answer.content
        return self._blocks[number]


@contextmanager
def open_remote(
    session: requests.Session, file: IndexFile, timeout_s: float
) -> Iterator[IO[bytes]]:
    """Open a listed file for reading and seeking; a server without Range makes it a whole download."""
    import requests

    if urlsplit(file.url).scheme == "file":
        with Path(unquote(urlsplit(file.url).path)).open("rb") as local:
            yield local
        return
    try:
        first = session.get(
            file.url, headers={"Range": "bytes=0-0"}, stream=True, timeout=timeout_s
        )
        with first:
            if first.status_code == 206:
                size = int(first.headers["Content-Range"].rsplit("/", 1)[1])
                reader = _RangeReader(session, file.url, size, timeout_s)
                yield io.BufferedReader(reader, 1 << 12)
                return
            first.raise_for_status()
            with tempfile.TemporaryFile() as whole:
                for chunk in first.iter_content(1 << 20):
                    whole.write(chunk)
                whole.seek(0)
                yield whole
    except (requests.exceptions.RequestException, OSError) as fault:
        raise FetchError(
            found=f"{file.filename} at index {file.index}: {plain_reason(fault)}",
            expected="the file that the index lists",
            remedy="check the network, proxy and ca_bundle in configs/mirrors.yaml, or name another index there",
        ) from fault


def wheel_names(archive: zipfile.ZipFile) -> list[str]:
    return [entry.filename for entry in archive.infolist() if not entry.is_dir()]


def read_wheel_metadata(session: requests.Session, file: IndexFile, timeout_s: float) -> str:
    """Give the METADATA of a wheel: from the index when it serves it, else out of the wheel."""
    if file.has_metadata and urlsplit(file.url).scheme != "file":
        answer = session.get(f"{file.url}.metadata", timeout=timeout_s)
        if answer.status_code == 200:
            return answer.content.decode("utf-8")
    with open_remote(session, file, timeout_s) as handle, zipfile.ZipFile(handle) as archive:
        (name,) = [
            n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1
        ]
        return archive.read(name).decode("utf-8")


def list_wheel(session: requests.Session, file: IndexFile, timeout_s: float) -> list[str]:
    """Give the names of the files in a wheel."""
    with open_remote(session, file, timeout_s) as handle, zipfile.ZipFile(handle) as archive:
        return wheel_names(archive)
