"""UE8M0 scales: one byte b stands for 2^(b-127); 255 is NaN; there is no zero.

Such a byte is an exponent, not a small number. Copied as a number into an fp32 tensor, 2^-7 becomes
120.0 and the model still runs and prints nonsense (vllm-project/vllm#43416), so the way from
checkpoint bytes to fp32 is a function of its own that also refuses implausible scales.
"""

from __future__ import annotations

import torch

from h20_ops.errors import FormatError

UE8M0_NAN = 255
MAX_PLAUSIBLE_EXPONENT = 60


def encode_ue8m0(scales: torch.Tensor) -> torch.Tensor:
    """Round positive fp32 scales up to a power of two and return its biased exponent.

    Exact powers of two stay. Below 2^-127 the byte is 0; above 2^127 (and for NaN) it is 255.

    Args:
        scales: fp32, any shape, >= 0.
    Returns:
        uint8, same shape.
    """
    assert scales.dtype == torch.float32, f"scales must be fp32, got {scales.dtype}"
    bits = scales.contiguous().view(torch.int32)
    exponent = (bits >> 23) & 0xFF
    mantissa = bits & 0x7FFFFF
    # A subnormal has exponent field 0 and is worth mantissa * 2^-149: up to 2^-127 it needs byte
    # 0, above that byte 1, which is what "exponent + 1 if anything is left over" gives at 2^22.
    leftover = torch.where(exponent == 0, mantissa > 1 << 22, mantissa != 0)
    return (exponent + leftover.to(torch.int32)).clamp(0, UE8M0_NAN).to(torch.uint8)


def decode_ue8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Return the fp32 powers of two of ue8m0 bytes; 255 gives NaN, 0 the subnormal 2^-127."""
    assert exponents.element_size() == 1, f"exponents must be bytes, got {exponents.dtype}"
    biased = exponents.view(torch.uint8).to(torch.int32)
    normal = (biased << 23).view(torch.float32)
    smallest = torch.full_like(normal, 2.0**-127)
    scales = torch.where(biased == 0, smallest, normal)
    return torch.where(biased == UE8M0_NAN, torch.full_like(normal, torch.nan), scales)


def load_ue8m0_scales(
    exponents: torch.Tensor,
    destination: torch.dtype,
    *,
    name: str,
    max_exponent: int = MAX_PLAUSIBLE_EXPONENT,
) -> torch.Tensor:
    """Turn checkpoint scale bytes into what the destination holds: fp32 values or raw bytes.

        load_ue8m0_scales(sf, torch.float32, name="layers.3.attn.wkv.scale")  # 2^(b-127)
        load_ue8m0_scales(sf, torch.uint8, name="layers.3.ffn.w1.scale")      # b, unchanged

    Args:
        exponents: uint8, int8 or float8_e8m0fnu, any shape.
        destination: torch.float32, torch.uint8 or torch.float8_e8m0fnu; nothing else is a scale.
        name: the tensor's name, for the error.
        max_exponent: largest |b-127| accepted; real checkpoints stay far below 60.
    Raises:
        FormatError: a NaN scale or one of implausible size.
    """
    assert exponents.element_size() == 1, f"{name}: scale bytes expected, got {exponents.dtype}"
    data = exponents.view(torch.uint8)
    allowed = (torch.float32, torch.uint8, torch.float8_e8m0fnu)
    assert destination in allowed, f"{name}: destination {destination} is not one of {allowed}"
    num_nan = int((data == UE8M0_NAN).sum())
    if num_nan:
        raise FormatError(
            f"{name} holds {num_nan} scale byte(s) 255, which is NaN in ue8m0",
            "bytes 0..254, each meaning 2^(byte-127)",
            "check the shard's sha256 against the checkpoint's index and read it again",
        )
    farthest = int((data.to(torch.int32) - 127).abs().max()) if data.numel() else 0
    # Byte 0 is what a scale of an all-zero block looks like; it can not blow anything up.
    plausible = (data == 0) | ((data.to(torch.int32) - 127).abs() <= max_exponent)
    if not bool(plausible.all()):
        raise FormatError(
            f"{name} holds a scale of 2^±{farthest}",
            f"block scales within 2^±{max_exponent}",
            "check that these bytes are ue8m0 exponents and not e4m3 or fp32 data",
        )
    return decode_ue8m0(data) if destination == torch.float32 else data.view(destination)
