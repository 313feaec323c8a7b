"""Signatures at the experts and at the linears behind attention and Engram."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from dih20.parity.diagnosis.hypothesis import Hypothesis
from dih20.parity.diagnosis.inputs import Inputs
from dih20.parity.diagnosis.weight_readings import wrong_readings
from v41 import attention, engram, moe

_NAMES = ("w1", "w3", "w2")
Weights = Mapping[str, torch.Tensor]
Expert = Callable[[torch.Tensor, Weights, torch.Tensor | None], torch.Tensor]


def clean_experts(inputs: Inputs) -> torch.Tensor:
    """Give ffn.routed or ffn.shared from B's own inputs."""
    return _experts(inputs, _usual_expert(inputs), {})


def expert_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give wrong activations, swapped projections and wrong readings of the experts' bytes."""
    usual = _usual_expert(inputs)
    yield Hypothesis(
        cause="gate-clamped-both-sides",
        detail="the gate has a lower limit too",
        predict=lambda: _experts(inputs, _clamped_expert(inputs), {}),
    )
    yield Hypothesis(
        cause="w1-w3-swapped",
        detail="gate and up projections changed places",
        predict=lambda: _experts(inputs, _swapped(usual), {}),
    )
    groups: dict[tuple[str, str], dict[str, Callable[[], torch.Tensor]]] = {}
    for expert in _used(inputs):
        for leaf in _NAMES:
            name = f"{inputs.prefix}.{expert}.{leaf}.weight"
            for cause, _, weight in wrong_readings(inputs, name):
                groups.setdefault((cause, leaf), {})[name] = weight
                groups.setdefault((cause, "all three"), {})[name] = weight
    for (cause, which), readings in groups.items():

        def with_readings(
            readings: dict[str, Callable[[], torch.Tensor]] = readings,
        ) -> torch.Tensor:
            return _experts(inputs, usual, {name: read() for name, read in readings.items()})

        yield Hypothesis(cause=cause, detail=f"{which} of the experts", predict=with_readings)


def _used(inputs: Inputs) -> list[str]:
    if inputs.leaf == "shared":
        return ["shared_experts"]
    return [f"experts.{index}" for index in inputs.here("expert_ids").unique().tolist()]


def _experts(inputs: Inputs, expert: Expert, wrong: Weights) -> torch.Tensor:
    def weights(name: str) -> Weights:
        full = {leaf: f"{inputs.prefix}.{name}.{leaf}.weight" for leaf in _NAMES}
        return {k: wrong[n] if n in wrong else inputs.weight(n) for k, n in full.items()}

    x = inputs.here("norm").flatten(0, 1)
    if inputs.leaf == "shared":
        return expert(x, weights("shared_experts"), None)
    return moe.experts_sum(
        x,
        inputs.here("expert_ids"),
        inputs.here("expert_weights"),
        lambda index, rows, weight: expert(rows, weights(f"experts.{index}"), weight),
        inputs.config.n_routed_experts,
    )


def _usual_expert(inputs: Inputs) -> Expert:
    limit, numerics = inputs.config.swiglu_limit, inputs.numerics
    return lambda x, w, row: moe.swiglu_expert(x, w["w1"], w["w3"], w["w2"], limit, numerics, row)


def _swapped(expert: Expert) -> Expert:
    return lambda x, w, row: expert(x, {"w1": w["w3"], "w3": w["w1"], "w2": w["w2"]}, row)


def _clamped_expert(inputs: Inputs) -> Expert:
    limit, linear = inputs.config.swiglu_limit, inputs.numerics.linear

    def expert(x: torch.Tensor, w: Weights, row: torch.Tensor | None) -> torch.Tensor:
        gate, up = (linear(x, w[name]).clamp(-limit, limit) for name in ("w1", "w3"))
        hidden = torch.nn.functional.silu(gate) * up
        return linear(hidden if row is None else row.unsqueeze(-1) * hidden, w["w2"])

    return expert


def clean_projection(inputs: Inputs) -> torch.Tensor:
    """Give attn.output, or the streams behind Engram, from B's own inputs."""
    return _projection(inputs, {})


def projection_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give wrong readings of wo_a, wo_b or Engram's wkv."""
    leaves = ("wo_a", "wo_b") if inputs.leaf == "output" else ("wkv",)
    for leaf in leaves:
        name = f"{inputs.prefix}.{leaf}.weight"
        for cause, detail, weight in wrong_readings(inputs, name):

            def predict(
                name: str = name, weight: Callable[[], torch.Tensor] = weight
            ) -> torch.Tensor:
                return _projection(inputs, {name: weight()})

            yield Hypothesis(cause=cause, detail=detail, predict=predict)


def _projection(inputs: Inputs, wrong: Weights) -> torch.Tensor:
    def weight(leaf: str) -> torch.Tensor:
        name = f"{inputs.prefix}.{leaf}"
        return wrong[name] if name in wrong else inputs.weight(name)

    config, numerics = inputs.config, inputs.numerics
    if inputs.leaf == "output":
        wo_a, wo_b = weight("wo_a.weight"), weight("wo_b.weight")
        unrotated = inputs.here("context_unrotated")
        return attention.grouped_output(unrotated, wo_a, wo_b, config.o_groups, numerics)
    both = numerics.linear(inputs.here("found"), weight("wkv.weight"))
    *keys, value = both.unflatten(-1, (config.hc_mult + 1, -1)).unbind(dim=2)
    alive = (inputs.here("rows") >= 0).all(dim=-1)
    gated = engram.engram_gate(
        inputs.streams_before(), torch.stack(keys, dim=2), value,
        weight("q_weight"), weight("k_weight"), alive, config.rms_norm_eps,
    )  # fmt: skip
    return numerics.bf16(gated)


def clean_rows(inputs: Inputs) -> torch.Tensor:
    """Give the Engram rows found, from B's own row numbers."""
    return _rows(inputs, inputs.weight(f"{inputs.prefix}.embed.weight"))


def row_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give wrong readings of the table's bytes."""
    for cause, detail, weight in wrong_readings(inputs, f"{inputs.prefix}.embed.weight"):

        def predict(weight: Callable[[], torch.Tensor] = weight) -> torch.Tensor:
            return _rows(inputs, weight())

        yield Hypothesis(cause=cause, detail=detail, predict=predict)


def _rows(inputs: Inputs, table: torch.Tensor) -> torch.Tensor:
    return table[inputs.here("rows").clamp_min(0)].flatten(2)
