"""Compare cache entries and index vectors: codes, scales and values apart."""

from __future__ import annotations

import torch

from h20_ops.formats import GROUP_RULES, GroupRule, dequantise_groups, quantise_groups
from h20_ops.formats.group_cast import decode_scales

Details = dict[str, float | int | str]


def code_details(a: torch.Tensor, b: torch.Tensor, rule_name: str) -> Details:
    """Say how the codes and the scales of two tensors of dequantised values differ.

    The codes are found by quantising the values again, which gives them back exactly when the values
    are ones that the format holds; where a tensor is not, that is said instead.

    Args:
        a, b: floating, (..., channels), dequantised values.
    """
    rule = GROUP_RULES[rule_name]
    stored_a, stored_b = _stored(a, rule), _stored(b, rule)
    for name, stored in (("A", stored_a), ("B", stored_b)):
        if stored is None:
            return {"codes": f"{name}'s values are not ones that {rule_name} holds"}
    assert stored_a is not None and stored_b is not None
    (codes_a, scales_a), (codes_b, scales_b) = stored_a, stored_b
    details: Details = {
        "format": rule_name,
        "codes_differ": _share(codes_a != codes_b),
        "scales_differ": _share(scales_a != scales_b),
    }
    if rule.values == "e2m1":
        details["values_beyond_one_step"] = _beyond_one_step(
            a.float(), b.float(), scales_a, scales_b, rule
        )
    differs = scales_a != scales_b
    if rule.scale == "ue8m0" and bool(differs.any()):
        steps = (scales_b[differs].int() - scales_a[differs].int()).float()
        details["scale_log2_ratio"] = float(steps.median())
    return details


def _beyond_one_step(
    a: torch.Tensor,
    b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    rule: GroupRule,
) -> int:
    """Count FP4 values that are further apart than two neighbours of the coarser of their grids.

    A number close to halfway between two codes, or to where a group's exponent changes, may fall on
    either side; no rounding moves it further.
    """
    scale = torch.maximum(_coarsest(a, scales_a, rule), _coarsest(b, scales_b, rule))
    scale = scale.repeat_interleave(rule.group, dim=-1)
    largest = torch.maximum(a.abs(), b.abs())
    step = torch.where(largest > 4 * scale, 2.0, torch.where(largest > 2 * scale, 1.0, 0.5))
    return int(((a - b).abs() > step * scale).sum())


def _coarsest(x: torch.Tensor, scales: torch.Tensor, rule: GroupRule) -> torch.Tensor:
    """Give the largest scale of each group with which its values may have been stored.

    Quantising them again gives the smallest: a group whose largest code was 3 comes back with half
    the scale and codes twice as large, unless one of them was 1.5 or 0.5.
    """
    scale = decode_scales(scales, rule)
    codes = (x.unflatten(-1, (-1, rule.group)) / scale.unsqueeze(-1)).abs()
    only_fine = ((codes == 0.5) | (codes == 1.5)).any(dim=-1)
    return torch.where(only_fine, scale, 2 * scale)


def _stored(x: torch.Tensor, rule: GroupRule) -> tuple[torch.Tensor, torch.Tensor] | None:
    if x.shape[-1] % rule.group or not bool(x.isfinite().all()):
        return None
    codes, scales = quantise_groups(x.float(), rule)
    exact = torch.equal(dequantise_groups(codes, scales, rule), x.float())
    return (codes, scales) if exact else None


def _share(differs: torch.Tensor) -> float:
    return float(differs.float().mean()) if differs.numel() else 0.0


def values_of_codes(codes: torch.Tensor, scales: torch.Tensor, rule_name: str) -> torch.Tensor:
    """Give the fp32 values of stored codes and scales, uint8 (..., n) and (..., channels/group)."""
    return dequantise_groups(
        codes.view(torch.uint8), scales.view(torch.uint8), GROUP_RULES[rule_name]
    )
