"""Signatures at queries, window and compressed entries, and index vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dih20.parity.diagnosis.hypothesis import Hypothesis
from dih20.parity.diagnosis.inputs import Inputs
from dih20.parity.diagnosis.rotations import Turn, entry_position_hypotheses, rotation_hypotheses
from dih20.parity.diagnosis.rounding import TieRule, cast_with_ties, divided_cast, usual_cast
from dih20.parity.diagnosis.weight_readings import wrong_readings

Cast = Callable[[torch.Tensor], torch.Tensor]
_RULES = {
    "window_kv": "fp8_32_ue8m0",
    "compressed_kv": "fp4_16_e4m3",
    "index_key": "fp4_32_ue8m0",
    "index_query": "fp4_32_ue8m0",
}
_WEIGHTS = {"q_low": "wq_a", "q": "wq_b", "window_kv": "wkv", "index_query": "indexer.wq_b"}


def clean_entry(inputs: Inputs) -> torch.Tensor:
    """Give the site's tensor from B's own inputs."""
    return _entry(inputs, inputs.rope.rotate, _usual(inputs))


def entry_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give the known wrong tensors of this site: rotation, position, rounding, weight bytes."""
    leaf, cast = inputs.leaf, _usual(inputs)
    if leaf != "q_low":
        yield from rotation_hypotheses(inputs, lambda turn: _entry(inputs, turn, cast))
    if leaf in ("compressed_kv", "index_key"):
        yield from entry_position_hypotheses(inputs, lambda turn: _entry(inputs, turn, cast))
    if leaf in _RULES:
        yield from _tie_hypotheses(inputs)
    if leaf in _WEIGHTS:
        name = f"{inputs.prefix}.{_WEIGHTS[leaf]}.weight"
        for cause, detail, weight in wrong_readings(inputs, name):

            def predict(weight: Callable[[], torch.Tensor] = weight) -> torch.Tensor:
                return _entry(inputs, inputs.rope.rotate, cast, weight())

            yield Hypothesis(cause=cause, detail=detail, predict=predict)


def _tie_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    rule, turn = _RULES[inputs.leaf], inputs.rope.rotate
    ties: tuple[TieRule, ...] = ("away", "down")
    for tie in ties:

        def predict(tie: TieRule = tie) -> torch.Tensor:
            return _entry(inputs, turn, lambda x: cast_with_ties(x, rule, tie))

        yield Hypothesis(cause="tie-rounding", detail=f"halfway values go {tie}", predict=predict)
    if inputs.leaf == "compressed_kv":
        yield Hypothesis(
            cause="tie-rounding",
            detail="scaled by division instead of reciprocals",
            predict=lambda: _entry(inputs, turn, divided_cast),
        )


def _usual(inputs: Inputs) -> Cast:
    rule = _RULES.get(inputs.leaf)
    if rule is None or not inputs.numerics.rounds:
        return lambda x: x
    return lambda x: usual_cast(x, rule)


def _entry(
    inputs: Inputs, turn: Turn, cast: Cast, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the site with a way to turn, a cast and, perhaps, another weight."""
    leaf, numerics, config = inputs.leaf, inputs.numerics, inputs.config
    bf16 = numerics.bf16
    if leaf in ("compressed_kv", "index_key"):
        latent = inputs.here("latent")
        entries = torch.arange(latent.shape[1])
        positions = (inputs.count_before("latent") + entries) * inputs.kind.ratio
        if leaf == "compressed_kv":
            return cast(bf16(turn(latent, positions)))
        key = bf16(torch.nn.functional.linear(latent, inputs.weight(_name(inputs, "indexer.wk"))))
        key = inputs.norm(key, _name(inputs, "indexer.k_norm"))
        return cast(bf16(turn(key, positions)))
    if weight is None:
        weight = inputs.weight(_name(inputs, _WEIGHTS[leaf]))
    source = "norm" if leaf in ("q_low", "window_kv") else "q_low"
    x = numerics.linear(inputs.here(source), weight)
    if leaf == "q_low":
        return inputs.norm(x, _name(inputs, "q_norm"))
    if leaf == "window_kv":
        return cast(bf16(turn(inputs.norm(x, _name(inputs, "kv_norm")), inputs.positions)))
    dim = config.head_dim if leaf == "q" else config.index_head_dim
    return cast(bf16(turn(x.unflatten(-1, (-1, dim)), inputs.positions)))


def _name(inputs: Inputs, name: str) -> str:
    return f"{inputs.prefix}.{name}.weight"
