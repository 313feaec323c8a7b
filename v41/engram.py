"""Engram: rows of a large table, found by hashing the last few tokens, gated into the streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from v41.config import ModelConfig

_SEED_STEP = 10007  # each layer's multipliers come from a generator seeded with this times its id
DEAD = -1  # compressed id of a token that breaks the look-back: an image token


def _is_prime(number: int) -> bool:
    if number < 2 or number % 2 == 0:
        return number == 2
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True


def table_primes(config: ModelConfig) -> dict[int, list[list[int]]]:
    """Give the table size of each layer, n-gram size (2, 3, ...) and head.

    Every size is a prime above engram_vocab_size - 1 that no layer or head before it has taken.
    """
    taken: set[int] = set()
    primes: dict[int, list[list[int]]] = {}
    for layer in config.engram_layer_ids:
        primes[layer] = []
        for _ in range(config.engram_max_ngram_size - 1):
            heads: list[int] = []
            number = config.engram_vocab_size - 1
            while len(heads) < config.engram_n_heads:
                number += 1
                if number not in taken and _is_prime(number):
                    taken.add(number)
                    heads.append(number)
            primes[layer].append(heads)
    return primes


def multipliers(layer: int, max_ngram: int, compressed_vocab: int) -> list[int]:
    """Give the odd multiplier of each look-back distance; products stay below 2^63."""
    import numpy

    bound = (2**63 - 1) // compressed_vocab // 2
    draws = numpy.random.default_rng(_SEED_STEP * layer).integers(0, bound, max_ngram)
    return [int(draw) * 2 + 1 for draw in draws]


@dataclass(frozen=True, kw_only=True)
class EngramHash:
    """The row numbers of one layer's table for every token.

    compressed_ids: int64, (vocab,), token id -> id in the compressed vocabulary.
    """

    layer: int
    primes: list[list[int]]
    factors: list[int]
    compressed_ids: torch.Tensor
    pad_token_id: int
    image_token_id: int | None = None

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hash the last tokens at every position.

        Args:
            tokens: int64, (batch, length), from the sequence's start.
        Returns:
            int64, (batch, length, heads * (max_ngram - 1)), rows of the concatenated table; -1 for
            image tokens.
        """
        ids = self.compressed_ids.to(tokens.device)[tokens]
        if self.image_token_id is not None:
            ids = torch.where(tokens == self.image_token_id, DEAD, ids)
        pad = int(self.compressed_ids[self.pad_token_id])
        alive = ids != DEAD
        mixed = torch.where(alive, ids, pad) * self.factors[0]
        reach = alive
        rows, offset = [], 0
        for distance, heads in enumerate(self.primes, start=1):
            back = torch.nn.functional.pad(ids, (distance, 0), value=DEAD)[:, : ids.shape[1]]
            reach = reach & (back != DEAD)
            mixed = mixed ^ (torch.where(reach, back, pad) * self.factors[distance])
            for prime in heads:
                rows.append(mixed % prime + offset)
                offset += prime
        stacked = torch.stack(rows, dim=-1)
        return torch.where(alive.unsqueeze(-1), stacked, -1)


def engram_gate(
    streams: torch.Tensor,
    keys: torch.Tensor,
    value: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    alive: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Add the looked-up value to each stream through its own gate.

    Args:
        streams: fp32, (batch, rows, n, D).
        keys: fp32, (batch, rows, n, D).    value: fp32, (batch, rows, D).
        q_weight, k_weight: fp32, (n, D), norm weights.
        alive: bool, (batch, rows); False leaves the streams as they are.
    """
    dot = (streams * keys * (q_weight * k_weight)).sum(dim=-1)
    dot = dot * torch.rsqrt(streams.square().mean(dim=-1) + eps)
    dot = dot * torch.rsqrt(keys.square().mean(dim=-1) + eps) * streams.shape[-1] ** -0.5
    gate = torch.sigmoid(dot.sign() * dot.abs().clamp_min(1e-6).sqrt())
    gate = torch.where(alive.unsqueeze(-1), gate, torch.zeros_like(gate))
    return streams + gate.unsqueeze(-1) * value.unsqueeze(-2)


def layer_hashes(config: ModelConfig, compressed_ids: torch.Tensor | None) -> dict[int, EngramHash]:
    """Give the hash of every Engram layer; compressed ids are needed exactly when there is one."""
    if not config.engram_layer_ids:
        return {}
    assert compressed_ids is not None, "a model with Engram layers needs compressed_ids"
    size, count = int(compressed_ids.max()) + 1, config.engram_max_ngram_size
    return {
        layer: EngramHash(
            layer=layer,
            primes=primes,
            factors=multipliers(layer, count, size),
            compressed_ids=compressed_ids,
            pad_token_id=config.engram_pad_token_id,
        )
        for layer, primes in table_primes(config).items()
    }
