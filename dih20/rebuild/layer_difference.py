"""Say where two tars of a layer part: the first member that differs, how, and at which bytes.

Kinds: missing (only one of them has it), order, kind (a file here, a link there), mode, owner,
mtime, link (another target), attributes, content.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, cast

from dih20.rebuild.binary_difference import differing_range

_BLOCK = 1 << 20
_KINDS = {
    tarfile.REGTYPE: "a file",
    tarfile.AREGTYPE: "a file",
    tarfile.DIRTYPE: "a folder",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}


@dataclass(frozen=True, kw_only=True)
class MemberDifference:
    """One member of which two layers say different things. Bytes are counted from 0, the last one included."""

    member: str
    kind: str
    first: str
    second: str
    bytes: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        where = f" at bytes {self.bytes[0]}-{self.bytes[1]}" if self.bytes else ""
        return f"{self.member}: {self.kind}{where}: {self.first} / {self.second}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def differences(first: BinaryIO, second: BinaryIO) -> Iterator[MemberDifference]:
    """Give every difference of two tars in the order of their names; order itself comes last.

    Both files must allow reading at any place.
    """
    with (
        tarfile.open(fileobj=first, mode="r:") as one,
        tarfile.open(fileobj=second, mode="r:") as other,
    ):
        here, there = ({m.name: m for m in tar.getmembers()} for tar in (one, other))
        for name in sorted(here.keys() | there.keys()):
            if name not in here or name not in there:
                there_too = "there" if name in there else "not there"
                yield MemberDifference(
                    member=name,
                    kind="missing",
                    first="there" if name in here else "not there",
                    second=there_too,
                )
            else:
                yield from _of_members(one, here[name], other, there[name])
        if list(here) != list(there) and here.keys() == there.keys():
            number = next(
                n for n, pair in enumerate(zip(here, there, strict=True)) if len({*pair}) > 1
            )
            yield MemberDifference(
                member=list(here)[number],
                kind="order",
                first=f"member {number}",
                second=f"member {list(there).index(list(here)[number])}",
            )


def _of_members(
    one: tarfile.TarFile, here: tarfile.TarInfo, other: tarfile.TarFile, there: tarfile.TarInfo
) -> Iterator[MemberDifference]:
    if _kind(here) != _kind(there):
        yield _said(here, "kind", _kind(here), _kind(there))
        return
    if here.isreg():
        yield from _of_contents(one, here, other, there)
    elif here.linkname != there.linkname:
        yield _said(here, "link", here.linkname, there.linkname)
    facts = (
        ("mode", f"{here.mode:o}", f"{there.mode:o}"),
        ("owner", f"{here.uid}:{here.gid}", f"{there.uid}:{there.gid}"),
        ("mtime", f"{here.mtime}", f"{there.mtime}"),
        ("attributes", _attributes(here), _attributes(there)),
    )
    for kind, mine, theirs in facts:
        if mine != theirs:
            yield _said(here, kind, mine, theirs)


def _of_contents(
    one: tarfile.TarFile, here: tarfile.TarInfo, other: tarfile.TarFile, there: tarfile.TarInfo
) -> Iterator[MemberDifference]:
    mine, theirs = (
        cast(BinaryIO, tar.extractfile(member)) for tar, member in ((one, here), (other, there))
    )
    start, end, place = -1, -1, 0
    sample = (b"", b"")
    while True:
        a, b = mine.read(_BLOCK), theirs.read(_BLOCK)
        if not a and not b:
            break
        if a != b:
            low, high = differing_range(a, b)
            if start < 0:
                start, sample = place + low, (a[low:][:24], b[low:][:24])
            end = place + high
        place += _BLOCK
    if start >= 0:
        sizes = "" if here.size == there.size else f"; {here.size} and {there.size} bytes long"
        yield MemberDifference(
            member=here.name,
            kind="content",
            first=f"{sample[0]!r}",
            second=f"{sample[1]!r}{sizes}",
            bytes=(start, end),
        )


def _said(member: tarfile.TarInfo, kind: str, mine: str, theirs: str) -> MemberDifference:
    return MemberDifference(member=member.name, kind=kind, first=mine, second=theirs)


def _kind(member: tarfile.TarInfo) -> str:
    return _KINDS.get(member.type, f"type {member.type!r}")


def _attributes(member: tarfile.TarInfo) -> str:
    """Give what pax records say beside name, size and times, which are compared by themselves."""
    other = {k: v for k, v in member.pax_headers.items() if k.startswith("SCHILY.xattr.")}
    return ", ".join(f"{key}={value!r}" for key, value in sorted(other.items())) or "none"
