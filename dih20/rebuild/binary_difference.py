"""Where two builds of one ELF file differ, and whether that changes what runs."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["debug information", "code", "device code"]

_DEBUG: Final = (".debug_", ".zdebug_", ".stab", ".note.", ".comment", ".gnu_debug")
_DEBUG_NAMES: Final = (".symtab", ".strtab", ".shstrtab")
_DEVICE: Final = (".nv_fatbin", "__nv_relfatbin", ".nvFatBinSegment")
# It is a hash over the rest, so it differs whenever anything does and is never the reason.
_FOLLOWS: Final = ".note.gnu.build-id"


@dataclass(frozen=True, kw_only=True)
class SectionDifference:
    """One section that differs; the range counts bytes of the file, the last one included."""

    section: str
    kind: Kind
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class BinaryDifference:
    """How two ELF files differ; sections in the order of the file, what only follows left out."""

    sections: tuple[SectionDifference, ...]
    device_code: Literal["none", "equal", "differs"]

    @property
    def kind(self) -> Kind:
        kinds = {section.kind for section in self.sections}
        return next(k for k in ("device code", "code", "debug information") if k in kinds)


@dataclass(frozen=True, kw_only=True)
class _Section:
    name: str
    offset: int
    data: bytes


def differing_range(first: bytes, second: bytes) -> tuple[int, int]:
    """Give the offsets of the first and of the last byte that differ, counted in the longer text."""
    shared = min(len(first), len(second))
    start = next(
        (i for i in _blocks(shared) if first[i : i + _STEP] != second[i : i + _STEP]), shared
    )
    while start < shared and first[start] == second[start]:
        start += 1
    if len(first) != len(second):
        return start, max(len(first), len(second)) - 1
    end = shared - 1
    while end > start and first[end] == second[end]:
        end -= 1
    return start, end


_STEP: Final = 4096


def _blocks(length: int) -> range:
    return range(0, length, _STEP)


def compare_binaries(first: bytes, second: bytes) -> BinaryDifference | None:
    """Compare two ELF files section by section; None when no section differs."""
    left, right = _sections(first), _sections(second)
    found = []
    for name in dict.fromkeys([*left, *right]):
        mine, other = left.get(name), right.get(name)
        if mine is None or other is None:
            there = mine or other
            assert there is not None
            end = there.offset + max(len(there.data), 1) - 1
            found.append(_difference(name, there.offset, end))
        elif mine.data != other.data:
            start, end = differing_range(mine.data, other.data)
            found.append(_difference(name, mine.offset + start, mine.offset + end))
    own = [entry for entry in found if entry.section.split("#")[0] != _FOLLOWS] or found
    if not own:
        return None
    has_code = any(_plain(name) in _DEVICE for name in [*left, *right])
    changed = any(entry.kind == "device code" for entry in own)
    return BinaryDifference(
        sections=tuple(sorted(own, key=lambda entry: entry.start)),
        device_code="differs" if changed else "equal" if has_code else "none",
    )


def _difference(name: str, start: int, end: int) -> SectionDifference:
    return SectionDifference(section=_plain(name), kind=kind_of(_plain(name)), start=start, end=end)


def _plain(name: str) -> str:
    return name.split("#")[0]


def kind_of(section: str) -> Kind:
    """Say what a section holds: only names and lines for a debugger, or what is run."""
    if section in _DEVICE:
        return "device code"
    if section.startswith(_DEBUG) or section in _DEBUG_NAMES:
        return "debug information"
    return "code"


def _sections(content: bytes) -> dict[str, _Section]:
    """Give sections by name; a name that stands there twice gets a number after #."""
    from elftools.elf.elffile import ELFFile

    found: dict[str, _Section] = {}
    sections: Any = ELFFile(io.BytesIO(content)).iter_sections()
    for section in sections:
        if section.header.sh_type in ("SHT_NULL", "SHT_NOBITS"):
            continue
        name = str(section.name)
        if name in found:
            name = f"{name}#{len(found)}"
        found[name] = _Section(
            name=name, offset=int(section.header.sh_offset), data=bytes(section.data())
        )
    return found
