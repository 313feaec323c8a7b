"""Find instructions in a kernel's machine code without a disassembler."""

from __future__ import annotations

import struct
from collections import Counter

INSTRUCTION_BYTES = 16  # since sm_70
# The low nine bits name the operation; the three above them say where operands come from. Read off
# cuobjdump's listings of sm_90a code.
OPERATION_BITS = 0x1FF
WGMMA = 0x1F0  # HGMMA: asynchronous warpgroup matrix product
MMA = 0x03C  # HMMA: a warp's own matrix product, far slower on this device
ASYNC_COPY = 0x1AE  # LDGSTS: global to shared memory
LOCAL_LOAD, LOCAL_STORE = 0x183, 0x187  # LDL, STL: registers that did not fit


def operations(cubin: bytes, entry: str) -> Counter[int]:
    """Count the operations of one kernel of a cubin by their number."""
    code = section(cubin, f".text.{entry}")
    words = (struct.unpack_from("<H", code, at)[0] for at in range(0, len(code), INSTRUCTION_BYTES))
    return Counter(word & OPERATION_BITS for word in words)


def section(elf: bytes, name: str) -> bytes:
    """The contents of a section of a 64-bit little-endian ELF file."""
    assert elf[:6] == b"\x7fELF\x02\x01", f"no 64-bit little-endian ELF: {elf[:6]!r}"
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * i) for i in range(count)]
    names = headers[names_at]
    known = []
    for header in headers:
        start = names[4] + header[0]
        known.append(elf[start : elf.index(b"\0", start)].decode())
        if known[-1] == name:
            return elf[header[4] : header[4] + header[5]]
    raise AssertionError(f"no section {name!r}; there are {known}")
