"""Selections made of scores that rounding has moved are explained; others are not."""

from __future__ import annotations

import pytest
import torch

from dih20.parity.compare.rounding import BF16_STEP, Roundings
from tests.v41.tiny import CONFIG
from v41.indexer import candidate_blocks, index_scores, select, visible_entries
from v41.numerics import Numerics

pytestmark = pytest.mark.torch

ROWS, NUMERICS = 240, Numerics.of("sm90")
SOURCE, CONSUMER = 4, 6  # of candidates; both read the keys of layer 4
POSITIONS = torch.arange(ROWS)


class Run:
    """Index queries, keys and weights of two layers; scores as another engine may round them."""

    def __init__(self, seed: int) -> None:
        self.noise = torch.Generator().manual_seed(seed)
        self.queries = {layer: self._random(1, ROWS, 2, 128) for layer in (SOURCE, CONSUMER)}
        self.norm = self._random(1, ROWS, CONFIG.hidden_size)
        self.keys = self._random(1, ROWS, 128)
        self.weights = {
            f"layers.{layer}.attn.indexer.weights_proj.weight": self._random(2, CONFIG.hidden_size)
            for layer in (SOURCE, CONSUMER)
        }
        self.roundings = Roundings(CONFIG, self.weights, NUMERICS)
        for layer, query in self.queries.items():
            self.roundings.see(f"layers.{layer}.attn.norm", self.norm)
            self.roundings.see(f"layers.{layer}.attn.index_query", query)
        for half in self.keys.split(ROWS // 2, dim=1):  # as two steps store them
            self.roundings.see(f"layers.{SOURCE}.attn.index_key", half)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.noise)

    def scores(self, layer: int, moved: float) -> torch.Tensor:
        """Give scores whose heads' weights are off by up to `moved` bf16 steps."""
        heads = self.norm @ self.weights[f"layers.{layer}.attn.indexer.weights_proj.weight"].mT
        shift = torch.randn(heads.shape, generator=self.noise).sign()
        heads = heads * (1 + moved * BF16_STEP * shift)
        return index_scores(self.queries[layer], self.keys, heads, NUMERICS)

    def chosen(self, layer: int, moved: float) -> torch.Tensor:
        visible = visible_entries(POSITIONS, ROWS, 1)
        allowed = visible.expand(1, -1, -1)
        if layer == CONSUMER:
            allowed = allowed & candidate_blocks(
                self.scores(SOURCE, moved), visible,
                block_size=CONFIG.candidate_block_size, topk_blocks=CONFIG.candidate_topk_blocks,
            )  # fmt: skip
        return select(self.scores(layer, moved), allowed, CONFIG.index_topk)


@pytest.mark.parametrize("layer", [SOURCE, CONSUMER])
def test_what_rounding_moves_is_explained_and_what_is_further_off_is_not(layer: int) -> None:
    moved_rows = far_rows = 0
    for seed in range(5):
        run = Run(seed)
        sound = run.chosen(layer, 0.0)
        moved = run.chosen(layer, 0.9)
        best, possible = run.roundings.judge(layer, moved, POSITIONS)
        assert bool(best.all()) and bool(possible.all()), seed
        moved_rows += int((moved != sound).any(dim=-1).sum())
        best, possible = run.roundings.judge(layer, run.chosen(layer, 60.0), POSITIONS)
        assert bool(possible.all())
        far_rows += int((~best).sum())
    assert moved_rows > 5  # the test has rows that rounding moves
    assert far_rows > 200


def test_rows_of_another_size_or_with_entries_of_the_future_are_impossible() -> None:
    run = Run(0)
    chosen = run.chosen(SOURCE, 0.0)
    chosen[0, 40, chosen[0, 40].nonzero()[0]] = False
    chosen[0, 20, chosen[0, 20].nonzero()[0]] = False
    chosen[0, 20, 21] = True
    _, possible = run.roundings.judge(SOURCE, chosen, POSITIONS)
    assert (~possible)[0].nonzero().flatten().tolist() == [20, 40]


def test_candidates_that_are_ignored_are_not_explained() -> None:
    run = Run(1)
    visible = visible_entries(POSITIONS, ROWS, 1).expand(1, -1, -1)
    every = select(run.scores(CONSUMER, 0.0), visible, CONFIG.index_topk)
    best, possible = run.roundings.judge(CONSUMER, every, POSITIONS)
    assert bool(possible.all()) and int((~best).sum()) > 10
