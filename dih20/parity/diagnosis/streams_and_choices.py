"""Signatures at a site's input (which mix collapsed the streams) and at the indexer's choice."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dih20.parity.diagnosis.hypothesis import Hypothesis
from dih20.parity.diagnosis.inputs import Inputs
from v41 import hyper_connections, indexer


def clean_input(inputs: Inputs) -> torch.Tensor:
    """Give attn.input or ffn.input with the mix of the site before it."""
    streams = inputs.streams_before()
    part = inputs.site.split(".")[2]
    if part == "ffn":
        pre = inputs.at(f"layers.{inputs.layer}.attn.next_pre")
    elif inputs.layer:
        pre = inputs.at(f"layers.{inputs.layer - 1}.ffn.next_pre")
    else:
        pre = hyper_connections.first_pre(streams)
    return inputs.numerics.bf16(hyper_connections.collapse(streams, pre))


def input_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give the collapse by the site's own mix."""
    streams = inputs.streams_before()
    layer, part = inputs.site.rsplit(".", 2)[0], inputs.site.split(".")[2]

    def own() -> torch.Tensor:
        fn, base, scale = (inputs.weight(f"{layer}.hc_{part}_{n}") for n in ("fn", "base", "scale"))
        mix = hyper_connections.mixes(streams, fn, base, scale, inputs.config)
        return inputs.numerics.bf16(hyper_connections.collapse(streams, mix.next_pre))

    yield Hypothesis(cause="pre-mix-not-delayed", detail="collapsed by its own mix", predict=own)


def clean_choice(inputs: Inputs) -> torch.Tensor:
    """Give the chosen entries from B's own scores and candidates."""
    scores = inputs.here("index_scores")
    return indexer.select(scores, _allowed(inputs, scores), inputs.config.index_topk)


def choice_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give the choice among all visible entries instead of the published blocks."""
    if inputs.kind.candidates != "consumer":
        return
    scores = inputs.here("index_scores")
    visible = _visible(inputs, scores)
    yield Hypothesis(
        cause="candidates-ignored",
        detail="chosen among all visible entries",
        predict=lambda: indexer.select(scores, visible, inputs.config.index_topk),
    )


def _visible(inputs: Inputs, scores: torch.Tensor) -> torch.Tensor:
    visible = indexer.visible_entries(inputs.positions, scores.shape[-1], inputs.kind.ratio)
    return visible.expand_as(scores)


def _allowed(inputs: Inputs, scores: torch.Tensor) -> torch.Tensor:
    visible, config = _visible(inputs, scores), inputs.config
    if inputs.kind.candidates != "consumer":
        return visible
    published = inputs.at(f"layers.{config.candidate_source_layer_id}.attn.index_scores")
    blocks = indexer.candidate_blocks(
        published,
        visible[0],
        block_size=config.candidate_block_size,
        topk_blocks=config.candidate_topk_blocks,
    )
    return visible & blocks
