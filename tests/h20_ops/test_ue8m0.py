"""UE8M0 scales: exponents, rounding up, and the way from a checkpoint (case F34)."""

from __future__ import annotations

import pytest
import torch

from h20_ops.errors import FormatError
from h20_ops.formats import decode_ue8m0, encode_ue8m0, load_ue8m0_scales

pytestmark = pytest.mark.torch


def test_bytes_are_exponents_not_numbers() -> None:
    data = torch.tensor([0, 120, 127, 130, 254], dtype=torch.uint8)
    assert decode_ue8m0(data).tolist() == [2.0**-127, 2.0**-7, 1.0, 8.0, 2.0**127]
    assert decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().item()


@pytest.mark.parametrize(
    ("scale", "byte"),
    [
        (1.0, 127),
        (1.0000001, 128),  # the next fp32 above 1
        (0.9999999, 127),
        (2.0**-7, 120),
        (1.5 * 2.0**-7, 121),
        (2.0**-126, 1),
        (2.0**-127, 0),
        (1.5 * 2.0**-127, 1),
        (2.0**-149, 0),
        (0.0, 0),
        (2.0**127, 254),
        (3e38, 255),
        (float("nan"), 255),
    ],
)
def test_a_scale_is_rounded_up_and_powers_of_two_stay(scale: float, byte: int) -> None:
    assert encode_ue8m0(torch.tensor([scale], dtype=torch.float32)).item() == byte


def test_loading_converts_for_fp32_and_keeps_bytes_for_bytes() -> None:
    data = torch.tensor([0, 120, 127, 130], dtype=torch.uint8)
    loaded = load_ue8m0_scales(data, torch.float32, name="w.scale")
    assert loaded.tolist() == [2.0**-127, 2.0**-7, 1.0, 8.0]
    assert load_ue8m0_scales(data, torch.uint8, name="w.scale").equal(data)
    kept = load_ue8m0_scales(data.view(torch.float8_e8m0fnu), torch.uint8, name="w.scale")
    assert kept.equal(data)


def test_loading_refuses_nan_and_names_the_tensor() -> None:
    data = torch.tensor([127, 255], dtype=torch.uint8)
    with pytest.raises(FormatError, match=r"layers\.3\.scale holds 1 scale byte\(s\) 255"):
        load_ue8m0_scales(data, torch.float32, name="layers.3.scale")


@pytest.mark.parametrize("byte", [127 + 61, 127 - 61])
def test_loading_refuses_implausible_scales(byte: int) -> None:
    data = torch.tensor([127, byte], dtype=torch.uint8)
    with pytest.raises(FormatError, match=r"w\.scale holds a scale of 2\^±61"):
        load_ue8m0_scales(data, torch.float32, name="w.scale")


def test_loading_into_a_dtype_that_would_copy_bytes_as_numbers_is_a_mistake() -> None:
    data = torch.tensor([127], dtype=torch.uint8)
    with pytest.raises(AssertionError, match=r"w\.scale: destination torch\.bfloat16"):
        load_ue8m0_scales(data, torch.bfloat16, name="w.scale")
