"""Random weights straight into the engine's parameters: no checkpoint of five gigabytes is written and read."""

from __future__ import annotations

import math
from typing import Any

import torch

_CODE_SPREAD = 16.0  # standard deviation of e4m3 codes: none is NaN, few are clipped
_PIECE = 1 << 28


def fill(model: Any) -> int:
    """Fill every parameter of a materialised, unloaded model; give the number of its values.

    FP8 weights get the scales that P05 and P06 would leave: fp32 powers of two over 128x128, so that
    products keep the size of their inputs. Engram tables get theirs per 32 columns.
    """
    count = 0
    for name, parameter in model.named_parameters():
        count += parameter.numel()
        if parameter.dtype == torch.float8_e4m3fn:
            _fill_codes(parameter.data)
            _fill_scales(parameter)
        else:
            _fill_plain(name, parameter.data)
    return count


def _fill_codes(codes: torch.Tensor) -> None:
    flat = codes.view(torch.uint8).view(-1)
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE]
        values = torch.randn(piece.numel(), dtype=torch.bfloat16, device=codes.device)
        piece.copy_(values.mul_(_CODE_SPREAD).to(torch.float8_e4m3fn).view(torch.uint8))


def _fill_scales(parameter: Any) -> None:
    """Scales that make a row's product as large as its input on average."""
    *groups, rows, columns = parameter.shape
    exponent = -round(math.log2(_CODE_SPREAD * math.sqrt(columns)))
    if getattr(parameter, "is_engram", False):
        parameter.sf.fill_(1 / _CODE_SPREAD)
        return
    shape = (*groups, -(-rows // 128), -(-columns // 128))
    parameter.sf = torch.full(
        shape, 2.0**exponent, dtype=torch.float32, device=parameter.data.device
    )


def _fill_plain(name: str, values: torch.Tensor) -> None:
    if "norm" in name:
        values.fill_(1.0)
    elif values.dim() < 2:
        values.zero_()
    else:
        values.normal_(std=1 / math.sqrt(values.shape[-1]))
