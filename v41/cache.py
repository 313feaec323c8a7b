"""What the model keeps of the tokens it has seen, for a batch of sequences of one length."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class LayerCache:
    """One layer's state; only kv sources use the last three.

    window: (batch, <= W-1, 512), the latest window entries, rotated and rounded.
    compressed: (batch, entries, 512), rotated and rounded; entry j stands for tokens j*r...
    index_keys: (batch, entries, index_head_dim), rotated and rounded.
    pending: (batch, < r, 2, 512), value and gate of tokens whose group is not complete.
    """

    window: torch.Tensor | None = None
    compressed: torch.Tensor | None = None
    index_keys: torch.Tensor | None = None
    pending: torch.Tensor | None = None


@dataclass
class Cache:
    """The state of the whole model after `length` tokens."""

    layers: list[LayerCache]
    length: int = 0
    tokens: torch.Tensor | None = None  # int64, (batch, length): Engram looks back over them

    @classmethod
    def empty(cls, num_layers: int) -> Cache:
        return cls(layers=[LayerCache() for _ in range(num_layers)])


def append(old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    """Concatenate along the token dimension; nothing before means just the new ones."""
    return new if old is None else torch.cat((old, new), dim=1)


@dataclass
class Rows:
    """The tokens being run now, and what sources among the layers have decided for them.

    positions: int64, (rows,).
    chosen: index source layer -> bool (batch, rows, entries), the entries its consumers read.
    candidates: bool (batch, rows, entries), what candidate consumers may choose from.
    """

    positions: torch.Tensor
    cache: Cache
    chosen: dict[int, torch.Tensor] = field(default_factory=dict)
    candidates: torch.Tensor | None = None
