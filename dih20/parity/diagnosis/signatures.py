"""Try every known cause on the first wrong tensor and name those that explain it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dih20.parity.diagnosis import (
    attention_context,
    attention_entries,
    feed_forward,
    rotations,
    streams_and_choices,
)
from dih20.parity.diagnosis.causes import TITLES
from dih20.parity.diagnosis.hypothesis import Hypothesis, InputMissing, explained, is_exactly
from dih20.parity.diagnosis.inputs import Inputs
from dih20.parity.model import Cause, Finding

if TYPE_CHECKING:
    from dih20.parity.evidence import Evidence

MINIMUM = 0.6  # share of the error that a cause must explain to be named
_CLEAN_LIMIT = 0.3  # largest share of the error by which our own clean value may be off


@dataclass(frozen=True, kw_only=True)
class Signatures:
    """A site's clean computation and the wrong ones that are known of it."""

    clean: Callable[[Inputs], torch.Tensor]
    hypotheses: Callable[[Inputs], Iterator[Hypothesis]]


def _unrotated(inputs: Inputs) -> torch.Tensor:
    turned = inputs.rope.rotate(inputs.here("context"), inputs.positions, inverse=True)
    return inputs.numerics.bf16(turned)


_ENTRY = Signatures(
    clean=attention_entries.clean_entry, hypotheses=attention_entries.entry_hypotheses
)
_INPUT = Signatures(
    clean=streams_and_choices.clean_input, hypotheses=streams_and_choices.input_hypotheses
)
_EXPERT = Signatures(clean=feed_forward.clean_experts, hypotheses=feed_forward.expert_hypotheses)
_PROJECTION = Signatures(
    clean=feed_forward.clean_projection, hypotheses=feed_forward.projection_hypotheses
)
BY_SITE: dict[str, Signatures] = {
    "attn.input": _INPUT,
    "ffn.input": _INPUT,
    **dict.fromkeys(
        [f"attn.{leaf}" for leaf in (
            "q_low", "q", "window_kv", "compressed_kv", "index_key", "index_query"
        )],
        _ENTRY,
    ),
    "attn.chosen": Signatures(
        clean=streams_and_choices.clean_choice, hypotheses=streams_and_choices.choice_hypotheses
    ),
    "attn.context": Signatures(
        clean=attention_context.clean_context, hypotheses=attention_context.context_hypotheses
    ),
    "attn.context_unrotated": Signatures(
        clean=_unrotated, hypotheses=rotations.output_hypotheses
    ),
    "attn.output": _PROJECTION,
    "engram.found": Signatures(
        clean=feed_forward.clean_rows, hypotheses=feed_forward.row_hypotheses
    ),
    "engram.streams": _PROJECTION,
    "ffn.routed": _EXPERT,
    "ffn.shared": _EXPERT,
}  # fmt: skip


def diagnose(finding: Finding, evidence: Evidence) -> list[Cause]:
    """Give the causes that the first wrong tensor looks like, best first; [] for an unknown one.

    Each cause is computed from B's own inputs of that site and must explain most of what B differs
    by from the clean value; several may, and then all are named, one entry per cause.
    """
    if finding.layer is None:
        return []
    signatures = BY_SITE.get(finding.site.split(".", 2)[2])
    seen = evidence.b(finding.site, finding.step)
    if signatures is None or seen is None:
        return []
    inputs = Inputs(evidence)
    seen = seen.float() if seen.is_floating_point() else seen
    try:
        clean = signatures.clean(inputs)
        found = list(_explaining(signatures, inputs, seen, clean))
    except InputMissing:
        return []
    if not found or not _agrees(clean, evidence.forced(), seen):
        return []
    best: dict[str, Cause] = {}
    for cause in sorted(found, key=lambda cause: -cause.confidence):
        best.setdefault(cause.name, cause)
    return list(best.values())


def _explaining(
    signatures: Signatures, inputs: Inputs, seen: torch.Tensor, clean: torch.Tensor
) -> Iterator[Cause]:
    for hypothesis in signatures.hypotheses(inputs):
        try:
            predicted = hypothesis.predict()
        except InputMissing:
            continue
        share = explained(seen, clean, predicted)
        if share < MINIMUM or (hypothesis.exact and not is_exactly(seen, predicted)):
            continue
        yield Cause(
            name=hypothesis.cause,
            title=TITLES[hypothesis.cause],
            confidence=round(min(share, 1.0), 3),
            because=f"{hypothesis.detail}: explains {share:.1%} of the error",
        )


def _agrees(clean: torch.Tensor, forced: torch.Tensor | None, seen: torch.Tensor) -> bool:
    """Check our clean value against the replay, so that no signature rests on other inputs."""
    if forced is None:
        return True
    return _distance(clean, forced) <= _CLEAN_LIMIT * _distance(seen, forced)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    difference = a.double() - b.double()
    return float(difference.nan_to_num(nan=1.0, posinf=1e38, neginf=-1e38).norm())
