"""Group casts whose halfway values go elsewhere than to the even code."""

from __future__ import annotations

from typing import Literal

import torch

from h20_ops.formats import GROUP_RULES, GroupRule, decode_e2m1, encode_e2m1
from h20_ops.formats.e4m3 import E4M3_MAX, decode_e4m3, encode_e4m3
from h20_ops.formats.group_cast import decode_scales, dequantise_groups, quantise_groups

TieRule = Literal["away", "down"]


def cast_with_ties(x: torch.Tensor, rule_name: str, ties: TieRule) -> torch.Tensor:
    """Cast the last dimension by a rule and back, with halfway values away from zero or towards it.

    Only values exactly halfway between two codes differ from the usual cast.
    """
    rule = GROUP_RULES[rule_name]
    _, stored = quantise_groups(x, rule)
    scale = decode_scales(stored, rule).unsqueeze(-1)
    groups = x.float().unflatten(-1, (-1, rule.group))
    scaled = groups * (1.0 / scale) if rule.by_reciprocal else groups / scale
    limit = rule.max_value
    # One part in 2^20 moves a halfway value off the middle and crosses no other boundary of bf16
    # inputs, whose neighbours are 2^-8 apart.
    nudge = 1.0 + 2.0**-20 if ties == "away" else 1.0 - 2.0**-20
    rounded = _to_codes_and_back((scaled * nudge).clamp(-limit, limit), rule)
    return (rounded * scale).flatten(-2)


def usual_cast(x: torch.Tensor, rule_name: str) -> torch.Tensor:
    rule = GROUP_RULES[rule_name]
    return dequantise_groups(*quantise_groups(x, rule), rule)


def divided_cast(x: torch.Tensor) -> torch.Tensor:
    """Cast to FP4 per 16 by division, where the engine multiplies by reciprocals."""
    return usual_cast(x, "fp4_16_e4m3_divide")


def _to_codes_and_back(values: torch.Tensor, rule: GroupRule) -> torch.Tensor:
    if rule.values == "e2m1":
        return decode_e2m1(encode_e2m1(values))
    return decode_e4m3(encode_e4m3(values.clamp(-E4M3_MAX, E4M3_MAX)))
