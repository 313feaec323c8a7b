"""What a shared object says of itself: libraries it needs, search paths, symbols, symbol versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"\x7fELF"


@dataclass(frozen=True, kw_only=True)
class SharedObject:
    """The dynamic section and symbols of one ELF file."""

    path: Path
    soname: str | None
    needed: tuple[str, ...]
    search_paths: tuple[str, ...]  # RPATH and RUNPATH, split
    undefined: frozenset[str]
    defined: frozenset[str]
    versions: frozenset[str]  # needed symbol versions, like GLIBC_2.34
    sections: frozenset[str]

    @property
    def has_device_code(self) -> bool:
        return bool({".nv_fatbin", "__nv_relfatbin"} & self.sections)

    def newest_version(self, prefix: str) -> str | None:
        """Give the newest needed version with a prefix: newest_version("GLIBC") -> "2.34"."""
        numbers = [
            name.removeprefix(f"{prefix}_")
            for name in self.versions
            if name.startswith(f"{prefix}_") and name[len(prefix) + 1 : len(prefix) + 2].isdigit()
        ]
        return max(numbers, key=numbered, default=None)


def numbered(version: str) -> tuple[int, ...]:
    """Give a dotted version as numbers, so that 2.9 < 2.34."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def elf_files(root: Path) -> list[Path]:
    """Give every ELF file below a folder, whatever its name."""
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and is_elf(p))


def read(path: Path) -> SharedObject:
    """Read one ELF file."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import SymbolTableSection

    soname: str | None = None
    needed: list[str] = []
    paths: list[str] = []
    undefined: set[str] = set()
    defined: set[str] = set()
    versions: set[str] = set()
    with path.open("rb") as file:
        elf = ELFFile(file)
        sections = list(elf.iter_sections())
        for section in sections:
            if isinstance(section, DynamicSection):
                for tag in section.iter_tags():
                    if tag.entry.d_tag == "DT_NEEDED":
                        needed.append(tag.needed)
                    elif tag.entry.d_tag == "DT_SONAME":
                        soname = tag.soname
                    elif tag.entry.d_tag == "DT_RPATH":
                        paths += tag.rpath.split(":")
                    elif tag.entry.d_tag == "DT_RUNPATH":
                        paths += tag.runpath.split(":")
            elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
                _sort_symbols(section.iter_symbols(), undefined, defined)
            elif isinstance(section, GNUVerNeedSection):
                versions |= {
                    aux.name for _, auxiliaries in section.iter_versions() for aux in auxiliaries
                }
        names = frozenset(section.name for section in sections)
    return SharedObject(
        path=path,
        soname=soname,
        needed=tuple(needed),
        search_paths=tuple(p for p in paths if p),
        undefined=frozenset(undefined),
        defined=frozenset(defined),
        versions=frozenset(versions),
        sections=names,
    )


def _sort_symbols(symbols: Iterator[Any], undefined: set[str], defined: set[str]) -> None:
    for symbol in symbols:
        if not symbol.name:
            continue
        if symbol.entry.st_shndx == "SHN_UNDEF":
            if symbol.entry.st_info.bind != "STB_WEAK":
                undefined.add(symbol.name)
        else:
            defined.add(symbol.name)
