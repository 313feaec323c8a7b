"""Every cause that a signature can name: identifier, title, and where to look next."""

from __future__ import annotations

TITLES: dict[str, str] = {
    "all-keys-masked": (
        "all keys masked: the context is exactly zero; look for a causal rule on buffer rows"
    ),
    "page-stride-ignored": (
        "non-dense page stride ignored: rows are addressed by slot * record; honour stride(0)"
    ),
    "record-width-confused": (
        "record width confused: an FP4 cache (288 B) is read as FP8 records (528 B), or the reverse"
    ),
    "page-split-as-interleaved": (
        "page-split and interleaved records confused: scales are sought behind the page's values"
    ),
    "nibble-order": "nibble order: the high half of a byte is taken for the even channel",
    "e8m0-as-number": "e8m0 bytes read as numbers: a scale 2^-7 became 120.0",
    "ue8m0-packed-as-fp32": "packed ue8m0 scales read as fp32: four exponents became one number",
    "engram-scale-view": "Engram scale view: four of a table row's scale bytes read as one fp32",
    "expert-scale-transposed": "expert scale transposed: (N, K/32) was read as (K/32, N)",
    "w1-w3-swapped": "w1 and w3 swapped: gate and up projections changed places",
    "sink-missing": "attention sink missing: the denominator has no sink term",
    "sink-log-base": "attention sink in the wrong log base: natural and base-2 units mixed",
    "rope-half-split": "RoPE pairs half-split: channel i is paired with i + 32 instead of 2i, 2i+1",
    "rope-base": "RoPE of the other layer kind: its base, and YaRN where it does not belong",
    "rope-compressed-position": "RoPE position of a compressed entry: entry j must turn by j * ratio",
    "inverse-rope-missing": "inverse RoPE missing: the output still carries the query's rotation",
    "inverse-rope-twice": "inverse RoPE applied twice",
    "inverse-rope-forward": "inverse RoPE turned forwards: the output carries the rotation twice",
    "candidates-ignored": "candidates ignored: entries outside the published blocks were chosen",
    "gate-clamped-both-sides": "gate clamped on both sides: only its upper side has a limit",
    "pre-mix-not-delayed": "pre mix not delayed: a site collapsed the streams with its own mix",
    "tie-rounding": "tie rounding: halfway values went to another code than the even one",
}  # fmt: skip
