"""FP8 e4m3: bytes against values written out by hand and against the format's definition."""

from __future__ import annotations

import math

import pytest
import torch

from h20_ops.formats import decode_e4m3, encode_e4m3

pytestmark = pytest.mark.torch

GOLDEN = [
    (0x00, 0.0),
    (0x01, 2.0**-9),
    (0x07, 7 * 2.0**-9),
    (0x08, 2.0**-6),
    (0x30, 0.5),
    (0x38, 1.0),
    (0x39, 1.125),
    (0x3F, 1.875),
    (0x40, 2.0),
    (0x4A, 5.0),
    (0x7E, 448.0),
    (0xB8, -1.0),
    (0xFE, -448.0),
]


@pytest.mark.parametrize(("byte", "value"), GOLDEN)
def test_known_bytes_and_values_belong_together(byte: int, value: float) -> None:
    assert decode_e4m3(torch.tensor([byte], dtype=torch.uint8)).item() == value
    assert encode_e4m3(torch.tensor([value])).item() == byte


def test_every_byte_decodes_by_the_definition() -> None:
    decoded = decode_e4m3(torch.arange(256, dtype=torch.int32).to(torch.uint8)).tolist()
    for byte, got in enumerate(decoded):
        sign = -1.0 if byte & 0x80 else 1.0
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        if (exponent, mantissa) == (15, 7):
            assert math.isnan(got), f"0x{byte:02x}"
        elif exponent == 0:
            assert got == sign * mantissa * 2.0**-9, f"0x{byte:02x}"
        else:
            assert got == sign * (8 + mantissa) * 2.0 ** (exponent - 10), f"0x{byte:02x}"


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (1.0625, 0x38),  # half way between 1 and 1.125: even mantissa
        (1.1875, 0x3A),  # half way between 1.125 and 1.25
        (2.0**-10, 0x00),  # half the smallest subnormal
        (3 * 2.0**-10, 0x02),
        (432.0, 0x7E),  # half way between 416 and 448
        (449.0, 0x7E),
        (1e9, 0x7E),
        (-1e9, 0xFE),
        (float("inf"), 0x7E),
        (-0.0, 0x80),
    ],
)
def test_ties_go_to_even_and_large_values_saturate(value: float, byte: int) -> None:
    assert encode_e4m3(torch.tensor([value])).item() == byte


def test_nan_stays_nan() -> None:
    assert int(encode_e4m3(torch.tensor([float("nan")]))[0]) & 0x7F == 0x7F
