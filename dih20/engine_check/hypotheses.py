"""What each suspected fault should show, from docs/why-it-printed-garbage.md, and whether it did."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dih20.engine_check import fault_switches as switches

Range = tuple[int, int]
ANY: Range = (0, 32)
_ALL: Range = (27, 32)
_NONE: Range = (0, 6)


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """first, right: how many first tokens and whole answers of 32 should be right.

    facts: how many of the second questions after a long prompt, which decode must look up in its
        compressed entries, should be answered right.
    site, phase: where the first tensor should differ from the healthy engine's.
    may_stop: values that are not finite are predicted, on which the engine's kernels stop it.
    """

    id: str
    name: str
    fault: str
    switch: Callable[[switches.Places], Any]
    site: str
    phase: str = "prefill"
    first: Range = ANY
    right: Range = ANY
    context_is_zero: bool = False
    facts: Range = ANY
    may_stop: bool = False

    @property
    def predicted(self) -> str:
        parts = [f"first differs at {self.site} in {self.phase}"]
        if self.first != ANY:
            parts.append(f"{self.first[0]} to {self.first[1]} first tokens right")
        if self.right != ANY:
            parts.append(f"{self.right[0]} to {self.right[1]} answers right")
        if self.facts != ANY:
            parts.append(f"{self.facts[0]} to {self.facts[1]} facts looked up in decode right")
        if self.context_is_zero:
            parts.append("the context is exactly 0")
        if self.may_stop:
            parts.append("or values that are not finite, which stop the engine")
        return ", ".join(parts)

    def seen(self, shown: dict[str, Any]) -> dict[str, bool]:
        """Give, for each prediction, whether it came true."""
        first = shown.get("first_difference") or {}
        found = {
            "site": bool(re.fullmatch(self.site, str(first.get("site"))))
            and first.get("phase") == self.phase
        }
        if self.first != ANY:
            found["first_token"] = self.first[0] <= shown["first_token_right"] <= self.first[1]
        if self.right != ANY:
            found["answers"] = self.right[0] <= shown["answers_right"] <= self.right[1]
        if self.facts != ANY:
            found["facts"] = self.facts[0] <= shown["facts_right_in_decode"] <= self.facts[1]
        if self.context_is_zero:
            found["context_is_zero"] = first.get("rms") == 0.0
        return found


HYPOTHESES = (
    Hypothesis(
        id="H1", name="keys-below-the-row", fault="prefill keeps entries below the query's row",
        switch=switches.keys_below_the_row, site=r"layers\.0\.attn\.context",
        first=_NONE, right=_NONE, context_is_zero=True,
    ),
    Hypothesis(
        id="H2", name="pages-as-dense", fault="decode takes pages for dense",
        switch=switches.pages_as_dense, site=r"layers\.[12]\.attn\.context", phase="decode",
        first=(30, 32), facts=(0, 2),
    ),
    Hypothesis(
        id="H3", name="records-as-wide", fault="288-byte records read as 528",
        switch=switches.records_as_wide, site=r"layers\.[12]\.attn\.context", phase="decode",
        first=(30, 32), right=(0, 16), may_stop=True,
    ),
    Hypothesis(
        id="H4", name="sink-missing", fault="sink missing",
        switch=switches.sink_missing, site=r"layers\.0\.attn\.context", right=(24, 32),
    ),
    Hypothesis(
        id="H4", name="sink-in-base-2", fault="sink in base 2",
        switch=switches.sink_in_base_2, site=r"layers\.0\.attn\.context", right=_ALL,
    ),
    Hypothesis(
        id="H5", name="engram-scales-as-fp32", fault="Engram scales packed, read as fp32",
        switch=switches.engram_scales_as_fp32, site=r"layers\.1\.engram\.streams",
        first=_NONE, right=_NONE, may_stop=True,
    ),
    Hypothesis(
        id="H5", name="linear-scales-as-fp32", fault="a linear's scales packed, read as fp32",
        switch=switches.linear_scales_as_fp32, site=r"layers\.0\.attn\.(q|window_kv)",
        first=_NONE, right=_NONE, may_stop=True,
    ),
    Hypothesis(
        id="H6", name="expert-rows-out-of-step", fault="expert rows aligned to 64, read as to 128",
        switch=switches.expert_rows_out_of_step, site=r"layers\.0\.ffn\.output",
    ),
    Hypothesis(
        id="H7", name="gate-and-up-exchanged", fault="w1 and w3 exchanged",
        switch=switches.gate_and_up_exchanged, site=r"layers\.0\.ffn\.output", right=_ALL,
    ),
    Hypothesis(
        id="H7", name="expert-scales-transposed", fault="expert scales transposed",
        switch=switches.expert_scales_transposed, site=r"layers\.\d\.ffn\.output", right=_ALL,
    ),
    Hypothesis(
        id="H8", name="rotation-back-left-out", fault="rotation back left out",
        switch=switches.rotation_back_left_out, site=r"layers\.0\.attn\.output", right=_ALL,
    ),
    Hypothesis(
        id="H8", name="rotation-back-twice", fault="rotation back twice",
        switch=switches.rotation_back_twice, site=r"layers\.0\.attn\.output", right=_ALL,
    ),
)  # fmt: skip
