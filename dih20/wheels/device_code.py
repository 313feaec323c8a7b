"""Which GPU architectures a binary holds machine code for, by two readers that must agree.

The first is NVIDIA's cuobjdump (the lock's inspector wheel). The second reads the fatbin containers
of the ELF file itself, so that neither a log nor one tool alone decides.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import InspectionFailed

_FATBIN_MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x100000, 0x200000  # the a and the f of sm_90a and sm_100f
_LISTED = re.compile(r"^(ELF|PTX) file\s+\d+:\s+.*\.(sm_\d+[af]?)\.(?:cubin|ptx)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """Architectures with machine code, and those with PTX only."""

    machine_code: frozenset[str]
    ptx: frozenset[str]

    @property
    def text(self) -> str:
        sass = ", ".join(sorted(self.machine_code)) or "none"
        return sass + (f"; PTX {', '.join(sorted(self.ptx))}" if self.ptx else "")

    def without_family_suffix(self) -> DeviceCode:
        """Give it the way cuobjdump 13.2 lists it: sm_100f appears as sm_100."""
        plain = [
            frozenset(name.removesuffix("f") for name in s) for s in (self.machine_code, self.ptx)
        ]
        return DeviceCode(machine_code=plain[0], ptx=plain[1])


def read_fatbins(path: Path) -> DeviceCode:
    """Read the fatbin containers of an ELF file."""
    from elftools.elf.elffile import ELFFile

    found: dict[int, set[str]] = {_PTX: set(), _CUBIN: set()}
    with path.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if section.name in (".nv_fatbin", "__nv_relfatbin"):
                for kind, architecture in _entries(section.data()):
                    found.setdefault(kind, set()).add(architecture)
    return DeviceCode(machine_code=frozenset(found[_CUBIN]), ptx=frozenset(found[_PTX]))


def _entries(data: bytes) -> Iterator[tuple[int, str]]:
    """Walk containers: a 16-byte header, then entries; entry header: kind u16, its size u32 at 4,
    payload size u64 at 8, architecture u32 at 28, flags u64 at 40."""
    offset = 0
    while offset + 16 <= len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, offset)
        if magic != _FATBIN_MAGIC:
            offset += 8  # containers are aligned, with padding between them
            continue
        end = min(offset + header + size, len(data))
        entry = offset + header
        while entry + 48 <= end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            (number,) = struct.unpack_from("<I", data, entry + 28)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
            if kind in (_PTX, _CUBIN):
                yield kind, f"sm_{number}{suffix}"
            if entry_header == 0:
                break
            entry += entry_header + payload
        offset = end


def list_with_cuobjdump(cuobjdump: Path, path: Path) -> DeviceCode:
    """Ask cuobjdump; a file without device code is an empty answer, not an error."""
    found: dict[str, set[str]] = {"ELF": set(), "PTX": set()}
    for option in ("--list-elf", "--list-ptx"):
        done = subprocess.run(
            [str(cuobjdump), option, str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        output = done.stdout + done.stderr
        if (
            done.returncode != 0
            and "No " not in output
            and "does not contain device code" not in output
        ):
            raise InspectionFailed(
                found=f"cuobjdump {option} {path.name} exited {done.returncode}: {output.strip()[-300:]}",
                expected="a list of the device code in the file",
                remedy="see that the file is whole, and that cuobjdump is the lock's (./inv fetch)",
            )
        for kind, architecture in _LISTED.findall(output):
            found[kind].add(architecture)
    return DeviceCode(machine_code=frozenset(found["ELF"]), ptx=frozenset(found["PTX"]))


def device_code_of(path: Path, cuobjdump: Path | None) -> DeviceCode:
    """Give the device code by our own reading, confirmed by cuobjdump where it is at hand."""
    own = read_fatbins(path)
    if cuobjdump is None:
        return own
    listed = list_with_cuobjdump(cuobjdump, path)
    if own.without_family_suffix() != listed.without_family_suffix():
        raise InspectionFailed(
            found=f"{path.name}: the file's fatbin says {own.text}, cuobjdump says {listed.text}",
            expected="both readers to agree",
            remedy="do not ship this wheel; report both outputs, one of the readers does not know the format",
        )
    return own
