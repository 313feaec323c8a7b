"""All indexes in force as one: files of a project in declared order, sizes, parts of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError
from dih20.index import remote_file
from dih20.index.pip_settings import effective_settings
from dih20.index.session import open_session, plain_reason
from dih20.index.simple import Index, IndexFile

if TYPE_CHECKING:
    import requests


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """The package indexes in force, asked in the declared order and no other.

    Example:
        indexes = open_indexes(load_mirrors())
        indexes.files("nvidia-cusparse")
    """

    indexes: tuple[Index, ...]
    source: str
    session: requests.Session
    timeout_s: float

    @property
    def shown(self) -> str:
        return ", ".join(index.shown for index in self.indexes)

    def files(self, project: str) -> list[IndexFile]:
        """Give a project's files of all indexes, those of the first index first."""
        return [file for index in self.indexes for file in index.files(project)]

    def metadata(self, file: IndexFile) -> str:
        return remote_file.read_wheel_metadata(self.session, file, self.timeout_s)

    def members(self, file: IndexFile) -> list[str]:
        """Give the names of the files in a wheel."""
        return remote_file.list_wheel(self.session, file, self.timeout_s)

    def content(self, file: IndexFile) -> bytes:
        """Give a small file whole."""
        with remote_file.open_remote(self.session, file, self.timeout_s) as handle:
            return handle.read()

    def size(self, file: IndexFile) -> int:
        """Give a file's size: as listed, else as the server says it."""
        import requests

        if file.size_bytes:
            return file.size_bytes
        if urlsplit(file.url).scheme == "file":
            return Path(unquote(urlsplit(file.url).path)).stat().st_size
        try:
            answer = self.session.head(file.url, allow_redirects=True, timeout=self.timeout_s)
            answer.raise_for_status()
            return int(answer.headers["Content-Length"])
        except (requests.exceptions.RequestException, KeyError, ValueError) as fault:
            raise FetchError(
                found=f"{file.filename} at index {file.index}: {plain_reason(fault)}",
                expected="the file's size in the index page or in the server's answer",
                remedy="try again, or name another index in configs/mirrors.yaml",
            ) from fault


def open_indexes(mirrors: Mirrors) -> Indexes:
    """Open the indexes that configs/mirrors.yaml, or else pip's configuration, declares."""
    settings = effective_settings(mirrors)
    if settings.proxy and not mirrors.proxy:
        mirrors = mirrors.model_copy(update={"proxy": settings.proxy})
    session = open_session(mirrors, ca_bundle=settings.ca_bundle)
    return Indexes(
        indexes=tuple(
            Index(url=url, session=session, timeout_s=mirrors.timeout_s) for url in settings.indexes
        ),
        source=settings.source,
        session=session,
        timeout_s=mirrors.timeout_s,
    )
