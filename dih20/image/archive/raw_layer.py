"""Read one layer as its engine holds it: from a tar, or from the folder of an overlay2 store.

Both give the same members, so that the normal form of a layer does not depend on how it was read.
A folder of an overlay hides a file by a device with the numbers 0/0 and a whole folder by an
attribute; in a tar both are files with a name of their own (.wh.NAME, .wh..wh..opq).
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from dih20.errors import ImageError
from dih20.image.archive.streams import BLOCK_BYTES
from dih20.image.archive.tar_header import (
    CHAR,
    DEVICE,
    FIFO,
    FILE,
    FOLDER,
    LINK,
    SYMLINK,
    Member,
)

_CAPABILITY = "security.capability"
_OPAQUE = b".wh..wh..opq"
_CAP_SYS_ADMIN = 1 << 21
_TAR_KINDS = {tarfile.AREGTYPE: FILE, tarfile.CONTTYPE: FILE, tarfile.GNUTYPE_SPARSE: FILE}
_KINDS = frozenset((FILE, LINK, SYMLINK, CHAR, DEVICE, FOLDER, FIFO))


class RawLayer(Protocol):
    """A layer to be read twice: first what is in it, then the content of what is kept."""

    def members(self) -> list[Member]: ...

    def content(self, member: Member) -> Iterator[bytes]: ...


class TarLayer:
    """A layer in a tar file that can be read at any place."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def members(self) -> list[Member]:
        found = []
        self._file.seek(0)
        with tarfile.open(
            fileobj=self._file, mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every entry it has seen
                if entry.type == tarfile.GNUTYPE_SPARSE:
                    raise _odd(entry.name, "a sparse member")
                found.append(_member(entry))
        return found

    def content(self, member: Member) -> Iterator[bytes]:
        self._file.seek(member.origin)
        left = member.size
        while left:
            block = self._file.read(min(left, BLOCK_BYTES))
            if not block:
                raise _odd(os.fsdecode(member.name), "a content that ends early")
            left -= len(block)
            yield block


class FolderLayer:
    """A layer in a folder of an overlay2 store, which only root may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fsencode(folder)

    def members(self) -> list[Member]:
        first: dict[tuple[int, int], bytes] = {}
        return list(self._walk(b"", first))

    def content(self, member: Member) -> Iterator[bytes]:
        left = member.size
        with io.FileIO(self._at(member.name)) as file:
            while left:
                block = file.read(min(left, BLOCK_BYTES))
                if not block:
                    raise _odd(os.fsdecode(member.name), "a content that ends early")
                left -= len(block)
                yield block

    def _at(self, name: bytes) -> bytes:
        """Give a path as bytes: a name need not be text."""
        return self._folder + b"/" + name

    def _walk(self, prefix: bytes, first: dict[tuple[int, int], bytes]) -> Iterator[Member]:
        with os.scandir(self._at(prefix)) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            name = prefix + entry.name
            facts = entry.stat(follow_symlinks=False)
            member = self._from_facts(name, facts, first)
            if member is None:
                continue
            yield member
            if member.kind == FOLDER:
                if _attribute(entry.path, "trusted.overlay.opaque") == b"y":
                    yield Member(name=name + b"/" + _OPAQUE)
                yield from self._walk(name + b"/", first)

    def _from_facts(
        self, name: bytes, facts: os.stat_result, first: dict[tuple[int, int], bytes]
    ) -> Member | None:
        mode = facts.st_mode
        member = Member(name=name, mode=mode, uid=facts.st_uid, gid=facts.st_gid)
        path = self._at(name)
        if stat.S_ISSOCK(mode):
            return None
        if stat.S_ISCHR(mode) and facts.st_rdev == 0:
            folder, _, base = name.rpartition(b"/")
            hidden = b".wh." + base
            return Member(name=folder + b"/" + hidden if folder else hidden)
        if not stat.S_ISDIR(mode) and facts.st_nlink > 1:
            inode = (facts.st_dev, facts.st_ino)
            if inode in first:
                member.kind, member.link = LINK, first[inode]
                return member
            first[inode] = name
        if stat.S_ISDIR(mode):
            member.kind = FOLDER
        elif stat.S_ISLNK(mode):
            member.kind, member.link = SYMLINK, os.readlink(path)  # noqa: PTH115 - bytes
        elif stat.S_ISREG(mode):
            member.size = facts.st_size
            member.capability = _attribute(path, _CAPABILITY)
        else:
            member.kind = {stat.S_IFCHR: CHAR, stat.S_IFBLK: DEVICE, stat.S_IFIFO: FIFO}[
                stat.S_IFMT(mode)
            ]
            member.device = (os.major(facts.st_rdev), os.minor(facts.st_rdev))
        return member


def may_read_folders() -> bool:
    """Say whether this process sees an overlay's own attributes; without them a layer reads wrong."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    found = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(found and int(found[0], 16) & _CAP_SYS_ADMIN)


def _attribute(path: bytes | str, name: str) -> bytes:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:  # it has none
        return b""


def _member(entry: tarfile.TarInfo) -> Member:
    kind = _TAR_KINDS.get(entry.type, entry.type)
    if kind not in _KINDS:
        raise _odd(entry.name, f"a member of type {entry.type!r}")
    capability = entry.pax_headers.get(f"SCHILY.xattr.{_CAPABILITY}", "")
    name = os.fsencode(entry.name).removeprefix(b"./").rstrip(b"/")
    if name.rpartition(b"/")[2].startswith(b".wh."):
        return Member(name=name)
    return Member(
        name=name,
        kind=kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size if kind == FILE else 0,
        link=_link(entry, kind),
        device=(entry.devmajor, entry.devminor) if kind in (CHAR, DEVICE) else (0, 0),
        capability=capability.encode("utf-8", "surrogateescape"),
        origin=entry.offset_data,
    )


def _link(entry: tarfile.TarInfo, kind: bytes) -> bytes:
    if kind == LINK:
        return os.fsencode(entry.linkname).removeprefix(b"./").strip(b"/")
    return os.fsencode(entry.linkname) if kind == SYMLINK else b""


def _odd(name: str, what: str) -> ImageError:
    return ImageError(
        found=f"{name} in a layer is {what}",
        expected="what an engine writes: files, folders, links, devices",
        remedy="see which step makes it; if it is the engine's doing, report it with the engine's version",
    )
