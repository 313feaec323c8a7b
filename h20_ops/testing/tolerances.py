"""The one table of tolerances: per operator, per output, per kind of data.

Operator rows are upstream's own bounds against an fp32 reference. An element passes on the absolute
or the relative bound; `normalised` bounds 1 - 2 sum(xy) / sum(x^2 + y^2) of the whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    abs: float
    rel: float
    normalised: float


def _tolerance(abs_: float, rel: float, normalised: float = 1.0) -> Tolerance:
    return Tolerance(abs=abs_, rel=rel, normalised=normalised)


_ANY = 1e300

TOLERANCES: dict[str, Tolerance] = {
    # bf16 out: half a step is 2^-9; three of 1/128 leaves room for bf16 probabilities.
    "mla_prefill.out": _tolerance(8e-4, 3.01 / 128, 1e-5),
    "mla_prefill.max_logits": _tolerance(1e-6, 2.01 / 65536),
    "mla_prefill.lse": _tolerance(1e-6, 2.01 / 65536),
    # Keys ten times as large make values, and the rounding of probabilities, ten times as large.
    "mla_prefill.wide.out": _tolerance(8e-3, 3.01 / 128, 1e-5),
    "mla_prefill.wide.max_logits": _tolerance(1e-6, 2.01 / 65536),
    "mla_prefill.wide.lse": _tolerance(1e-6, 2.01 / 65536),
    # Amplified keys (2 % of them times 256) make logits of hundreds: only the whole is bounded.
    "mla_prefill.amplified.out": _tolerance(_ANY, _ANY, 1e-5),
    "mla_prefill.amplified.max_logits": _tolerance(_ANY, _ANY),
    "mla_prefill.amplified.lse": _tolerance(1e-5, 4.01 / 65536),
    "mla_decode.out": _tolerance(1e-3, 2.01 / 128, 5e-6),
    "mla_decode.lse": _tolerance(1e-6, 8.01 / 65536),
    # Attention between two rotations with an FP8 result, dequantised.
    "fused_attn.out": _tolerance(1.1e-3, 1.01 / 8, 1e-3),
    "fused_attn.max_logits": _tolerance(1e-5, 4.01 / 65536),
    "fused_attn.lse": _tolerance(1e-5, 4.01 / 65536),
    "fused_attn.amplified.out": _tolerance(_ANY, _ANY, 1e-3),
    "fused_attn.amplified.lse": _tolerance(1e-4, 8.01 / 65536),
    # A value after one cast, relative to the group's largest magnitude for `abs`, to itself for
    # `rel`: half a step of the mantissa.
    "format.bf16": _tolerance(2.0**-133, 2.0**-8 / 2),
    "format.e4m3": _tolerance(2.0**-10, 2.0**-3 / 2),
    "format.e2m1": _tolerance(0.25, 0.25),
    # fp32 arithmetic of the twins against fp64, on logits of order one.
    "twin.out": _tolerance(1e-6, 2.0**-8, 1e-5),
    "twin.fp32": _tolerance(1e-5, 1e-5),
}


def tolerance(name: str) -> Tolerance:
    """Return a row of the table; an unknown name lists the known ones."""
    assert name in TOLERANCES, f"no tolerance {name!r}; known: {', '.join(sorted(TOLERANCES))}"
    return TOLERANCES[name]
