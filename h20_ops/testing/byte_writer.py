"""Write V4.1 cache records byte by byte, in plain Python, from the layout's description alone.

A writer and a reader that share code can agree on a wrong layout. This one shares nothing with
h20_ops.formats and h20_ops.kv_cache: values come from tables built from the formats' definitions,
rounding is a search for the nearest entry, and addresses are spelled out. It is slow.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Sequence

E4M3_TABLE = sorted(
    [(mantissa * 2.0**-9, mantissa) for mantissa in range(8)]
    + [
        ((8 + mantissa) * 2.0 ** (exponent - 10), exponent * 8 + mantissa)
        for exponent in range(1, 16)
        for mantissa in range(8)
        if (exponent, mantissa) != (15, 7)
    ]
)
E2M1_TABLE = [(0.0, 0), (0.5, 1), (1.0, 2), (1.5, 3), (2.0, 4), (3.0, 5), (4.0, 6), (6.0, 7)]


def nearest_code(table: Sequence[tuple[float, int]], value: float, sign_bit: int) -> int:
    """Return the code of the nearest table entry, of two equally near the even one."""
    magnitude = min(abs(value), table[-1][0])
    above = bisect.bisect_left(table, (magnitude, -1))
    low, high = table[max(0, above - 1)], table[min(above, len(table) - 1)]
    to_low, to_high = magnitude - low[0], high[0] - magnitude
    tie_to_low = to_low == to_high and low[1] % 2 == 0
    code = low[1] if to_low < to_high or tie_to_low else high[1]
    negative = value < 0 or (value == 0 and str(value)[0] == "-")
    return code | sign_bit if negative else code


def write_528(memory: bytearray, page_start: int, slot: int, row: Sequence[float]) -> None:
    """512 e4m3 bytes, then 16 ue8m0 bytes, at page_start + slot * 528."""
    assert len(row) == 512, len(row)
    record = page_start + slot * 528
    for group in range(16):
        part = row[group * 32 : group * 32 + 32]
        amax = max(1e-4, *(abs(x) for x in part))
        exponent = -127
        while 448.0 * 2.0**exponent < amax:
            exponent += 1
        memory[record + 512 + group] = exponent + 127
        for i, x in enumerate(part):
            byte = nearest_code(E4M3_TABLE, x / 2.0**exponent, 0x80)
            memory[record + group * 32 + i] = byte


def write_288(memory: bytearray, page_start: int, slot: int, row: Sequence[float]) -> None:
    """256 bytes of two e2m1 codes (even channel low), then 32 e4m3 scale bytes, per token."""
    assert len(row) == 512, len(row)
    record = page_start + slot * 288
    values = {code: value for value, code in E4M3_TABLE}
    sixth = _fp32(1.0 / 6.0)
    for group in range(32):
        part = row[group * 16 : group * 16 + 16]
        amax = max(6.0 * 2.0**-9, *(abs(x) for x in part))
        scale_byte = nearest_code(E4M3_TABLE, _fp32(amax * sixth), 0x80)
        memory[record + 256 + group] = scale_byte
        inverse = _fp32(1.0 / values[scale_byte])
        codes = [nearest_code(E2M1_TABLE, _fp32(x * inverse), 0x8) for x in part]
        for pair in range(8):
            low, high = codes[2 * pair], codes[2 * pair + 1]
            memory[record + group * 8 + pair] = low | high << 4


def _fp32(value: float) -> float:
    """Round a double to fp32, as one fp32 instruction would after an exact product."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
