"""One layer's attention: queries, window entries, compressed entries, selection, output."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from v41 import attention, indexer
from v41.cache import LayerCache, Rows, append
from v41.compressor import compress
from v41.config import LayerKind, ModelConfig
from v41.numerics import Numerics, rms_norm
from v41.rope import Rope
from v41.tap import Tap


class AttentionSite:
    """The attention of layer `index`; weights are those below "layers.{index}.attn."."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        numerics: Numerics,
        tap: Tap,
    ) -> None:
        self.index, self.config, self.numerics, self.tap = index, config, numerics, tap
        self.kind: LayerKind = config.layer(index)
        self.site = f"layers.{index}.attn"
        self._weights = weights
        self._rope = Rope(config, compressed=self.kind.ratio > 0)

    def _w(self, name: str) -> torch.Tensor:
        return self._weights[f"{self.site}.{name}"]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self._w(name), self.config.rms_norm_eps, self.numerics)

    def _named(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return self.tap(f"{self.site}.{name}", tensor)

    def __call__(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Attend the new rows. x: fp32, (batch, rows, D), normed; returns the same shape."""
        q_low = self._named("q_low", self._norm(self._linear(x, "wq_a"), "q_norm.weight"))
        q = self._query(q_low, rows)
        keys, mask = self._window(x, rows)
        if self.kind.ratio:
            compressed, chosen = self._compressed(x, q_low, rows)
            keys, mask = torch.cat((keys, compressed), dim=1), torch.cat((mask, chosen), dim=-1)
        context = attention.attend(q, keys, mask, self._w("attn_sink"), self.numerics)
        context = self._named("context", context)
        context = self.numerics.bf16(self._rope.rotate(context, rows.positions, inverse=True))
        context = self._named("context_unrotated", context)
        wo_a, wo_b = self._w("wo_a.weight"), self._w("wo_b.weight")
        return attention.grouped_output(context, wo_a, wo_b, self.config.o_groups, self.numerics)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.numerics.linear(x, self._w(f"{name}.weight"))

    def _query(self, q_low: torch.Tensor, rows: Rows) -> torch.Tensor:
        q = self._linear(q_low, "wq_b")
        q = q.unflatten(-1, (self.config.num_attention_heads, self.config.head_dim))
        return self._named("q", self.numerics.bf16(self._rope.rotate(q, rows.positions)))

    def _window(self, x: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the window entries in reach, (batch, keys, 512), and their mask."""
        state, window = rows.cache.layers[self.index], self.config.sliding_window
        kv = self._norm(self._linear(x, "wkv"), "kv_norm.weight")
        kv = self.numerics.bf16(self._rope.rotate(kv, rows.positions))
        kv = self._named("window_kv", self.numerics.window_entry(kv))
        keys = append(state.window, kv)
        state.window = keys[:, max(keys.shape[1] - (window - 1), 0) :]
        first = int(rows.positions[-1]) + 1 - keys.shape[1]
        key_positions = first + torch.arange(keys.shape[1], device=x.device)
        mask = attention.window_mask(rows.positions, key_positions, window)
        return keys, mask.expand(x.shape[0], -1, -1)

    def _compressed(
        self, x: torch.Tensor, q_low: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the source's compressed entries, (batch, entries, 512), and which are read."""
        kv_source, index_source = self.kind.kv_source, self.kind.index_source
        assert kv_source is not None and index_source is not None, f"{self.site}: {self.kind}"
        if self.kind.owns_kv:
            self._extend_compressed(x, rows)
        state = rows.cache.layers[kv_source]
        assert state.compressed is not None, f"layer {kv_source} owns no compressed cache"
        if self.kind.owns_index:
            rows.chosen[self.index] = self._select(x, q_low, state, rows)
        return state.compressed, rows.chosen[index_source]

    def _extend_compressed(self, x: torch.Tensor, rows: Rows) -> None:
        state, ratio = rows.cache.layers[self.index], self.kind.ratio
        before = 0 if state.compressed is None else state.compressed.shape[1]
        latent = compress(
            x,
            self._w("compressor.wkv.weight"),
            self._w("compressor.wgate.weight") if ratio == 2 else None,
            self._w("compressor.norm.weight"),
            self.config.rms_norm_eps,
            state,
            self.numerics,
        )
        latent = self._named("latent", latent)
        positions = (before + torch.arange(latent.shape[1], device=x.device)) * ratio
        entry = self.numerics.bf16(self._rope.rotate(latent, positions))
        entry = self._named("compressed_kv", self.numerics.compressed_entry(entry))
        key = torch.nn.functional.linear(latent, self._w("indexer.wk.weight"))
        key = self._norm(self.numerics.bf16(key), "indexer.k_norm.weight")
        key = self.numerics.bf16(self._rope.rotate(key, positions))
        key = self._named("index_key", self.numerics.index_vector(key))
        state.compressed = append(state.compressed, entry)
        state.index_keys = append(state.index_keys, key)

    def _select(
        self, x: torch.Tensor, q_low: torch.Tensor, state: LayerCache, rows: Rows
    ) -> torch.Tensor:
        """Choose entries for each row, publish candidates, or choose among the published."""
        config = self.config
        assert state.index_keys is not None, f"{self.site}: its kv source has no index keys"
        query = self._linear(q_low, "indexer.wq_b")
        query = query.unflatten(-1, (config.index_n_heads, config.index_head_dim))
        query = self.numerics.bf16(self._rope.rotate(query, rows.positions))
        query = self._named("index_query", self.numerics.index_vector(query))
        weights = torch.nn.functional.linear(x, self._w("indexer.weights_proj.weight"))
        scores = indexer.index_scores(query, state.index_keys, weights, self.numerics)
        scores = self._named("index_scores", scores)
        visible = indexer.visible_entries(rows.positions, scores.shape[-1], self.kind.ratio)
        allowed = visible.expand_as(scores)
        if self.kind.candidates == "source":
            rows.candidates = indexer.candidate_blocks(
                scores,
                visible,
                block_size=config.candidate_block_size,
                topk_blocks=config.candidate_topk_blocks,
            )
        elif self.kind.candidates == "consumer":
            assert rows.candidates is not None, f"{self.site}: no layer has published candidates"
            allowed = allowed & rows.candidates
        return self._named("chosen", indexer.select(scores, allowed, config.index_topk))
