"""The whole text model: tokens in, logits out; prefill and cached decode are one path.

model = Reference(config, weights, numerics=Numerics.of("trained"), compressed_ids=ids)
cache = model.new_cache()
logits = model.extend(tokens, cache)          # prefill: any number of tokens
logits = model.extend(next_token, cache)      # decode: one more
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from v41 import engram, hyper_connections, moe
from v41.attention_site import AttentionSite
from v41.cache import Cache, Rows, append
from v41.config import ModelConfig
from v41.numerics import Numerics, rms_norm
from v41.tap import Tap, no_tap


class Reference:
    """DeepSeek-V4.1's text model over a mapping of fp32 weights.

    Args:
        weights: released names -> fp32 tensors with values that the mode's weight formats can
            hold; scales are already multiplied in.
        compressed_ids: int64, (vocab,), Engram's token map; None for a model without Engram.
        tap: sees, and may replace, the tensor of every site.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        numerics: Numerics,
        compressed_ids: torch.Tensor | None = None,
        tap: Tap = no_tap,
    ) -> None:
        self.config, self.weights, self.numerics, self.tap = config, weights, numerics, tap
        layers = range(config.num_hidden_layers)
        self._attention = [AttentionSite(i, config, weights, numerics, tap) for i in layers]
        self._hashes = engram.layer_hashes(config, compressed_ids)

    def new_cache(self) -> Cache:
        """Give the state before the first token."""
        return Cache.empty(self.config.num_hidden_layers)

    def extend(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Run the next tokens of a batch of sequences of one length.

        Args:
            tokens: int64, (batch, rows), rows >= 1.
            cache: what came before; updated in place.
        Returns:
            fp32, (batch, rows, vocab).
        """
        cache.tokens = append(cache.tokens, tokens)
        positions = cache.length + torch.arange(tokens.shape[1], device=tokens.device)
        rows = Rows(positions=positions, cache=cache)
        embedded = self.tap("embed", self.weights["embed.weight"][tokens])
        streams = embedded.unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1)
        pre = hyper_connections.first_pre(streams)
        for index in range(self.config.num_hidden_layers):
            if index in self._hashes:
                streams = self._engram(index, streams, rows)
            streams, pre = self._site(f"layers.{index}", "attn", streams, pre, rows)
            streams, pre = self._site(f"layers.{index}", "ffn", streams, pre, rows)
        cache.length += tokens.shape[1]
        hidden = self.numerics.bf16(hyper_connections.collapse(streams, pre))
        normed = self.tap("final_norm", self._norm(hidden, "norm.weight"))
        logits = torch.nn.functional.linear(normed, self.weights["head.weight"])
        return self.tap("logits", logits)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self.weights[name], self.config.rms_norm_eps, self.numerics)

    def _site(
        self, layer: str, part: str, streams: torch.Tensor, pre: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Collapse with the previous site's pre, compute, mix back; return this site's pre."""
        site = f"{layer}.{part}"
        fn, base, scale = (self.weights[f"{layer}.hc_{part}_{n}"] for n in ("fn", "base", "scale"))
        mix = hyper_connections.mixes(streams, fn, base, scale, self.config)
        hidden = self.numerics.bf16(hyper_connections.collapse(streams, pre))
        hidden = self.tap(f"{site}.input", hidden)
        x = self.tap(f"{site}.norm", self._norm(hidden, f"{layer}.{part}_norm.weight"))
        index = int(layer.rsplit(".", 1)[1])
        output = self._attention[index](x, rows) if part == "attn" else self._moe(site, x)
        output = self.tap(f"{site}.output", output)
        mixed = self.numerics.bf16(hyper_connections.expand(streams, output, mix))
        next_pre = self.tap(f"{site}.next_pre", mix.next_pre)
        return self.tap(f"{site}.streams", mixed), next_pre

    def _moe(self, site: str, x: torch.Tensor) -> torch.Tensor:
        """Run routed and shared experts; fp32 sum, bf16 out."""
        config, w = self.config, self.weights
        flat = x.flatten(0, 1)
        chosen, weights = moe.route(
            flat,
            w[f"{site}.gate.weight"],
            w[f"{site}.gate.bias"],
            topk=config.num_experts_per_tok,
            scaling=config.routed_scaling_factor,
        )
        chosen, weights = (
            self.tap(f"{site}.expert_ids", chosen),
            self.tap(f"{site}.expert_weights", weights),
        )

        routed = self.tap(f"{site}.routed", self._routed(site, flat, chosen, weights))
        shared = self.tap(f"{site}.shared", self._expert(f"{site}.shared_experts", flat))
        return self.numerics.bf16(routed + shared).view_as(x)

    def _routed(
        self, site: str, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Sum each row's experts; where ranks hold a share of them each, this is what differs."""
        return moe.experts_sum(
            x,
            chosen,
            weights,
            lambda index, rows, weight: self._expert(f"{site}.experts.{index}", rows, weight),
            self.config.n_routed_experts,
        )

    def _expert(
        self, name: str, rows: torch.Tensor, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        w1, w3, w2 = (self.weights[f"{name}.{n}.weight"] for n in ("w1", "w3", "w2"))
        limit, numerics = self.config.swiglu_limit, self.numerics
        return moe.swiglu_expert(rows, w1, w3, w2, limit, numerics, weight)

    def _engram(self, index: int, streams: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Look rows up by the last tokens and gate them into the streams."""
        name, w = f"layers.{index}.engram", self.weights
        assert rows.cache.tokens is not None, "extend() appends the tokens first"
        hashes = self._hashes[index].rows(rows.cache.tokens)[:, -streams.shape[1] :]
        hashes = self.tap(f"{name}.rows", hashes)
        alive = (hashes >= 0).all(dim=-1)
        found = w[f"{name}.embed.weight"][hashes.clamp_min(0)].flatten(2)
        found = self.tap(f"{name}.found", found)
        both = self.numerics.linear(found, w[f"{name}.wkv.weight"])
        *keys, value = both.unflatten(-1, (self.config.hc_mult + 1, -1)).unbind(dim=2)
        q_weight, k_weight = w[f"{name}.q_weight"], w[f"{name}.k_weight"]
        eps = self.config.rms_norm_eps
        stacked = torch.stack(keys, dim=2)
        gated = engram.engram_gate(streams, stacked, value, q_weight, k_weight, alive, eps)
        return self.tap(f"{name}.streams", self.numerics.bf16(gated))
