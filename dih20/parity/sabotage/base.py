"""The healthy run that faults are injected into: a checkpoint, tokens, and how they are stepped."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dih20.parity.diagnosis.paged_cache import BLOCK_TOKENS
from dih20.parity.model import DataClass
from dih20.parity.oracle import Oracle
from v41.checkpoint import CheckpointReader
from v41.model import Reference
from v41.tap import Tap


@dataclass(frozen=True, kw_only=True)
class Base:
    """A model and a prompt.

    oracle: the clean weights, and the checkpoint whose bytes faults misread.
    tokens: int64, (1, n).    rows: tokens per step; the last steps of one row are decode.
    block_tokens: tokens per block of the emulated paged cache.
    """

    oracle: Oracle
    tokens: torch.Tensor
    rows: tuple[int, ...]
    data_class: DataClass
    block_tokens: int = BLOCK_TOKENS

    @property
    def checkpoint(self) -> CheckpointReader:
        assert self.oracle.checkpoint is not None, "faults in stored bytes need the checkpoint"
        return CheckpointReader(self.oracle.checkpoint)

    def layers(self, *kinds: str) -> list[int]:
        """Give the layers whose kind's name starts with one of these, e.g. "full", "reuse-r1"."""
        named = enumerate(kind.name for kind in self.oracle.config.layers)
        return [index for index, name in named if name.startswith(kinds)]

    def reference(self, tap: Tap, kind: type[Reference] = Reference) -> Reference:
        """Build the healthy model around a tap; kind: Reference or a subclass that is broken."""
        oracle = self.oracle
        return kind(
            oracle.config,
            oracle.weights,
            numerics=oracle.numerics,
            compressed_ids=oracle.compressed_ids,
            tap=tap,
        )


GATE_LIMIT = 1.0


def with_tight_gate(base: Base) -> Base:
    """Give the same base under a SwiGLU limit that gates reach.

    A small model's gates stay far from the release's limit of 10, and a clamp that never acts
    cannot be clamped wrongly; faults of the gate compare two runs under this limit.
    """
    config = replace(base.oracle.config, swiglu_limit=GATE_LIMIT)
    return replace(base, oracle=replace(base.oracle, config=config))
