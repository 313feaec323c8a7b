"""Whether a selection is one that rounding alone makes of the same index queries, keys and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from dih20.parity.model import Measure
from v41.config import ModelConfig
from v41.indexer import index_scores, visible_entries
from v41.numerics import Numerics

BF16_STEP = 2.0**-7  # of one bf16 number to the next, at most this share of it
# Tensor cores keep about 13 bits below the largest of the products they add, of 128 at most.
PRODUCT_SUM = 128 * 2.0**-13

_KEY = ".attn.index_key"
SEEN = (_KEY, ".attn.index_query", ".attn.norm")
Bounds = tuple[torch.Tensor, torch.Tensor]


class Roundings:
    """Follow a run's index queries, keys and norms, and judge its selections by them.

    Heads' weights and the sums are bf16 in every engine: each may come out as the next number.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, torch.Tensor], numerics: Numerics
    ) -> None:
        self.config, self.weights, self.numerics = config, weights, numerics
        self._latest: dict[str, torch.Tensor] = {}
        self._keys: dict[int, torch.Tensor] = {}

    def see(self, site: str, tensor: torch.Tensor) -> None:
        """Take what a site of SEEN gives to its consumers, in the order of the run."""
        if not site.endswith(_KEY):
            self._latest[site] = tensor
            return
        layer = int(site.split(".")[1])
        before = self._keys.get(layer)
        self._keys[layer] = tensor if before is None else torch.cat((before, tensor), dim=1)

    def judge(
        self, layer: int, chosen: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Say of each row whether its selection is the best one within rounding, and whether any is.

        The second is false where a row has too few entries, too many, or one that it must not see:
        no rounding makes that.

        Args:
            chosen: bool, (sequences, rows, entries).    positions: int64, (rows,).
        Returns:
            bool, (sequences, rows), twice.
        """
        low, high = self._scores(layer)
        visible = self._visible(layer, positions)
        surely, maybe = self._allowed(layer, visible)
        least, most = (x.sum(dim=-1).clamp_max(self.config.index_topk) for x in (surely, maybe))
        count = chosen.sum(dim=-1)
        possible = (least <= count) & (count <= most) & ~(chosen & ~visible).any(dim=-1)
        left_out = low.masked_fill(~surely | chosen, -torch.inf).amax(dim=-1)
        worst = high.masked_fill(~chosen, torch.inf).amin(dim=-1)
        best = possible & ~(chosen & ~maybe).any(dim=-1) & (left_out <= worst)
        return best, possible

    def weigh(
        self,
        measure: Measure,
        layer: int,
        chosen: torch.Tensor,
        differs: torch.Tensor,
        positions: torch.Tensor,
    ) -> Measure:
        """Add to a selection's measure how many of the rows that differ no rounding makes."""
        best, possible = self.judge(layer, chosen, positions)
        counts = {
            "rows_beyond_rounding": int((differs & ~best).sum()),
            "rows_impossible": int((differs & ~possible).sum()),
        }
        details = {**measure.details, **counts}
        return replace(measure, details=details, explained=not any(counts.values()))

    def _scores(self, layer: int) -> Bounds:
        """Give the least and the most that each score can be."""
        source, name = self.config.layer(layer).kv_source, f"layers.{layer}.attn"
        assert source is not None, f"layer {layer} selects among no entries"
        query, keys = self._latest[f"{name}.index_query"], self._keys[source]
        heads = torch.nn.functional.linear(
            self._latest[f"{name}.norm"].float(),
            self.weights[f"{name}.indexer.weights_proj.weight"],
        )
        scores = index_scores(query, keys, heads, self.numerics)
        size = heads.abs()
        dots = torch.relu(torch.einsum("bthd,bjd->bthj", query, keys))
        products = torch.einsum(
            "bth,bj->btj", size * query.abs().amax(dim=-1), keys.abs().amax(dim=-1)
        )
        weighed = torch.einsum("bthj,bth->btj", dots, size)
        slack = BF16_STEP * (weighed + scores.abs()) + PRODUCT_SUM * products
        return scores - slack, scores + slack

    def _visible(self, layer: int, positions: torch.Tensor) -> torch.Tensor:
        kind = self.config.layer(layer)
        assert kind.kv_source is not None, f"layer {layer} selects among no entries"
        keys = self._keys[kind.kv_source]
        visible = visible_entries(positions, keys.shape[1], kind.ratio)
        return visible.expand(keys.shape[0], -1, -1)

    def _allowed(self, layer: int, visible: torch.Tensor) -> Bounds:
        """Give the entries that a row surely may choose, and those that it may within rounding."""
        if self.config.layer(layer).candidates != "consumer":
            return visible, visible
        source = self.config.candidate_source_layer_id
        assert source is not None, f"layer {layer} keeps to candidates of no layer"
        surely, maybe = self._candidates(source, visible)
        return visible & surely, visible & maybe

    def _candidates(self, source: int, visible: torch.Tensor) -> Bounds:
        """Give entries of blocks that are surely kept, and of those that may be; the last one is."""
        size, most = self.config.candidate_block_size, self.config.candidate_topk_blocks
        low, high = (self._best(bound, visible, size) for bound in self._scores(source))
        if low.shape[-1] <= most:
            everything = torch.ones_like(visible)
            return everything, everything
        last = ((visible.sum(dim=-1, keepdim=True) - 1) // size).clamp_min(0)
        low, high = (bound.scatter(-1, last, torch.inf) for bound in (low, high))
        surely = low >= high.sort(dim=-1, descending=True).values[..., most : most + 1]
        maybe = high >= low.sort(dim=-1, descending=True).values[..., most - 1 : most]
        surely, maybe = (
            kept.repeat_interleave(size, dim=-1)[..., : visible.shape[-1]]
            for kept in (surely, maybe)
        )
        return surely, maybe

    @staticmethod
    def _best(scores: torch.Tensor, visible: torch.Tensor, size: int) -> torch.Tensor:
        padding = -scores.shape[-1] % size
        hidden = scores.masked_fill(~visible, -torch.inf)
        padded = torch.nn.functional.pad(hidden, (0, padding), value=-torch.inf)
        return padded.unflatten(-1, (-1, size)).amax(dim=-1)
