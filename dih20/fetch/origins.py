"""Where a locked file can be had: a list of addresses in declared order, with who names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError, HashMismatch
from dih20.index.apt_mirrors import apt_mirrors
from dih20.index.session import without_password
from dih20.index.shelf import Indexes, open_indexes
from dih20.lock.files import LockedFile


@dataclass(frozen=True, kw_only=True)
class Origin:
    """One address of a file, and what messages call the place."""

    url: str
    place: str


class Origins:
    """Find origins of files at the indexes and apt mirrors in force.

    Example:
        Origins(mirrors).of(lock.nccl())
    """

    def __init__(self, mirrors: Mirrors) -> None:
        self.mirrors = mirrors
        self._indexes: Indexes | None = None

    @property
    def indexes(self) -> Indexes:
        if self._indexes is None:
            self._indexes = open_indexes(self.mirrors)
        return self._indexes

    def describe(self, files: Sequence[LockedFile]) -> list[str]:
        """Give a line per kind of place that these files will be asked of, in order."""
        lines = []
        if any(f.kind != "deb" for f in files):
            lines.append(f"package indexes, from {self.indexes.source}: {self.indexes.shown}")
        for suite in sorted({f.suite for f in files if f.kind == "deb" and f.suite}):
            found = apt_mirrors(self.mirrors, suite)
            roots = ", ".join(map(without_password, found.roots))
            lines.append(f"apt mirrors of {suite}, from {found.source}: {roots}")
        return lines

    def of(self, file: LockedFile) -> list[Origin]:
        """Give every declared place that says it has the file; the first one comes first."""
        return self._at_mirrors(file) if file.kind == "deb" else self._at_indexes(file)

    def _at_mirrors(self, file: LockedFile) -> list[Origin]:
        assert file.path and file.suite, f"{file} is a deb without path or suite"
        roots = apt_mirrors(self.mirrors, file.suite).roots
        return [
            Origin(url=f"{root}/{quote(file.path)}", place=f"mirror {without_password(root)}")
            for root in roots
        ]

    def _at_indexes(self, file: LockedFile) -> list[Origin]:
        lacking, origins = [], []
        for index in self.indexes.indexes:
            listed = [f for f in index.files(file.name) if f.filename == file.filename]
            for entry in listed:
                if entry.sha256 and entry.sha256 != file.sha256:
                    raise HashMismatch(
                        found=f"index {index.shown} lists {file.filename} with sha256 {entry.sha256}",
                        expected=f"sha256 {file.sha256}, from the lock ({file})",
                        remedy="that index serves another file under this name: take it out of configs/mirrors.yaml, "
                        "or find out what changed before `./inv lock --upgrade` accepts it",
                    )
                origins.append(Origin(url=entry.url, place=f"index {index.shown}"))
            if not listed:
                lacking.append(f"index {index.shown} has {_what(index.files(file.name), file)}")
        if not origins:
            raise FetchError(
                found=f"{file.filename} cannot be had: " + "; ".join(lacking),
                expected=f"{file} at one of the declared indexes (from {self.indexes.source}), and no other is asked",
                remedy="name an index that has it under pip: indexes: in configs/mirrors.yaml, or run `./inv lock` "
                "against the ones in force",
            )
        return origins


def _what(listed: Sequence[object], file: LockedFile) -> str:
    return f"no project {file.name}" if not listed else f"{file.name}, but not this file"
