"""The first thing in which two builds of one wheel differ: member, byte range, section, and what that means."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dih20.rebuild.binary_difference import BinaryDifference, compare_binaries, differing_range
from dih20.wheels.elf import MAGIC

# From what changes nothing to what changes most.
KINDS: Final = ("archive", "metadata", "debug information", "content", "code", "device code")


@dataclass(frozen=True, kw_only=True)
class MemberDifference:
    """One member that differs, or that only one of the two has."""

    member: str
    kind: str
    start: int = 0
    end: int = 0
    section: str = ""
    device_code: str = "none"
    note: str = ""
    binary: BinaryDifference | None = None

    @property
    def text(self) -> str:
        if self.note:
            return f"{self.member}: {self.note}"
        where = f" (section {self.section})" if self.section else ""
        more = ""
        if self.binary and len(self.binary.sections) > 1:
            others = ", ".join(dict.fromkeys(s.section for s in self.binary.sections[1:]))
            more = f", also {others}"
        return f"{self.member}, bytes {self.start} to {self.end}{where}{more}: {self.kind}"


@dataclass(frozen=True, kw_only=True)
class WheelDifference:
    """How two wheel files differ; members in the archive's order, RECORD left out when it only follows."""

    members: tuple[MemberDifference, ...]
    equal_members: int

    @property
    def kind(self) -> str:
        return max((m.kind for m in self.members), key=KINDS.index, default="archive")

    @property
    def text(self) -> str:
        if not self.members:
            return "every member is equal; order, times or packing of the archive differ"
        first = self.members[0]
        more = f"; {len(self.members) - 1} more differ" if len(self.members) > 1 else ""
        return f"{first.text}{more}; {self.equal_members} members are equal; {self.meaning}"

    @property
    def meaning(self) -> str:
        """Say in words what the difference changes for whoever runs the wheel."""
        device = {m.device_code for m in self.members}
        code = (
            "device code differs"
            if "differs" in device
            else "device code is equal"
            if "equal" in device
            else "no differing file holds device code"
        )
        what = {
            "archive": "nothing that runs differs",
            "metadata": "only metadata differs",
            "debug information": "only debug information and notes differ",
            "content": "files differ that are read at run time",
            "code": "host code or data differs",
            "device code": "",
        }[self.kind]
        return f"{what}, {code}" if what else code

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "text": self.text,
            "equal_members": self.equal_members,
            "members": [asdict(member) for member in self.members[:10]],
        }


def compare_wheels(first: Path, second: Path) -> WheelDifference | None:
    """Give None for equal files, else what differs."""
    if _sha256(first) == _sha256(second):
        return None
    with zipfile.ZipFile(first) as left, zipfile.ZipFile(second) as right:
        names = list(dict.fromkeys([*left.namelist(), *right.namelist()]))
        found = []
        for name in names:
            mine, other = _content(left, name), _content(right, name)
            if mine != other:
                found.append(_compare(name, mine, other))
    own = [m for m in found if not m.member.endswith(".dist-info/RECORD")] or found
    return WheelDifference(members=tuple(own), equal_members=len(names) - len(found))


def _content(archive: zipfile.ZipFile, name: str) -> bytes | None:
    try:
        return archive.read(name)
    except KeyError:
        return None


def _compare(name: str, first: bytes | None, second: bytes | None) -> MemberDifference:
    kind = "metadata" if ".dist-info/" in name else "content"
    if first is None or second is None:
        which = "first" if second is None else "second"
        return MemberDifference(member=name, kind=kind, note=f"only in the {which} build")
    start, end = differing_range(first, second)
    if not (first.startswith(MAGIC) and second.startswith(MAGIC)):
        return MemberDifference(member=name, kind=kind, start=start, end=end)
    binary = compare_binaries(first, second)
    if binary is None:
        return MemberDifference(
            member=name, kind="debug information", start=start, end=end, section="between sections"
        )
    shown = binary.sections[0]
    return MemberDifference(
        member=name,
        kind=binary.kind,
        start=shown.start,
        end=shown.end,
        section=shown.section,
        device_code=binary.device_code,
        binary=binary,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
