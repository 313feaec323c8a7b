"""FP4 e2m1: codes, ties and nibble order against values written out by hand (case F38)."""

from __future__ import annotations

import pytest
import torch

from h20_ops.formats import decode_e2m1, encode_e2m1, pack_nibbles, unpack_nibbles

pytestmark = pytest.mark.torch

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_every_code_decodes_to_its_value() -> None:
    decoded = decode_e2m1(torch.arange(16, dtype=torch.uint8))
    assert decoded.tolist() == VALUES + [-v for v in VALUES]
    assert torch.signbit(decoded[8])


@pytest.mark.parametrize(
    ("value", "code"),
    [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)],
)
def test_a_tie_goes_to_the_even_code(value: float, code: int) -> None:
    assert encode_e2m1(torch.tensor([value, -value])).tolist() == [code, code | 8]


@pytest.mark.parametrize(
    ("value", "code"),
    [(0.2499, 0), (0.2501, 1), (0.7499, 1), (1.2501, 3), (1.7499, 3), (2.4999, 4), (2.5001, 5)]
    + [(3.4999, 5), (4.9999, 6), (5.0001, 7), (7.0, 7), (1e30, 7), (float("inf"), 7)],
)
def test_beside_a_tie_the_nearer_code_wins_and_large_values_saturate(
    value: float, code: int
) -> None:
    assert encode_e2m1(torch.tensor([value])).item() == code


def test_negative_zero_keeps_its_sign_and_nan_becomes_six() -> None:
    values = torch.tensor([-0.0, -0.1, float("nan")])
    assert encode_e2m1(values).tolist() == [8, 8, 7]


def test_the_low_nibble_is_the_even_element() -> None:
    packed = torch.tensor([0x21, 0xF0], dtype=torch.uint8)
    assert decode_e2m1(unpack_nibbles(packed)).tolist() == [0.5, 1.0, 0.0, -6.0]


def test_signed_and_unsigned_bytes_mean_the_same() -> None:
    packed = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    assert unpack_nibbles(packed).equal(unpack_nibbles(packed.view(torch.int8)))


def test_packing_is_not_the_split_order_of_other_formats() -> None:
    """Element j beside j+16 in a byte is another format; a round trip alone would accept it."""
    codes = torch.arange(32, dtype=torch.uint8) % 16
    packed = pack_nibbles(codes)
    assert packed.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2
    split_order = codes[:16] | (codes[16:] << 4)
    assert not packed.equal(split_order)
    assert not unpack_nibbles(split_order).equal(codes)
