"""Runs of the tiny random model: trusted, repeated, and with a tensor or weight changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import torch

from dih20.parity.capture import dump_reference, reference_facts
from dih20.parity.model import RunFacts
from dih20.parity.oracle import Oracle
from tests.v41.tiny import CONFIG as CONFIG
from tests.v41.tiny import compressed_ids, random_weights
from v41.model import Reference
from v41.numerics import Mode, Numerics
from v41.tap import Tap

ROWS = (40, 1, 1, 1)
Change = Callable[[str, torch.Tensor], torch.Tensor]
WEIGHTS = random_weights(CONFIG, 1)
IDS = compressed_ids(CONFIG)


def tokens(length: int = sum(ROWS), seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, CONFIG.vocab_size, (1, length), generator=generator)


def facts(mode: Mode = "trained", weights: str = "tiny") -> RunFacts:
    return reference_facts(CONFIG, mode=mode, weights=weights, data_class="synthetic")


def make(
    change: Change | None = None,
    weights: Mapping[str, torch.Tensor] = WEIGHTS,
    mode: Mode = "trained",
) -> Callable[[Tap], Reference]:
    """Build the model around a tap; `change` may replace a tensor before anybody sees it."""

    def build(tap: Tap) -> Reference:
        def changed(site: str, tensor: torch.Tensor) -> torch.Tensor:
            return tap(site, change(site, tensor) if change else tensor)

        numerics = Numerics.of(mode)
        return Reference(CONFIG, weights, numerics=numerics, compressed_ids=IDS, tap=changed)

    return build


class Runs:
    """Makes each run once, in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self._count = root, itertools.count()

    def new_folder(self) -> Path:
        return self.root / f"run-{next(self._count)}"

    def run(
        self,
        change: Change | None = None,
        *,
        weights: Mapping[str, torch.Tensor] = WEIGHTS,
        mode: Mode = "trained",
        rows: tuple[int, ...] = ROWS,
        prompt: torch.Tensor | None = None,
        claims: RunFacts | None = None,
        statistics_only: bool = False,
    ) -> Path:
        """Dump a run and give its folder."""
        folder = self.new_folder()
        dump_reference(
            folder,
            make(change, weights, mode),
            tokens() if prompt is None else prompt,
            rows,
            claims or facts(mode),
            statistics_only=statistics_only,
        )
        return folder

    @cached_property
    def trusted(self) -> Path:
        return self.run()

    @cached_property
    def repeated(self) -> Path:
        return self.run()

    @cached_property
    def wrong_context(self) -> Path:
        """Layer 4's attention is off by a thousandth, in decode only."""
        return self.run(at("layers.4.attn.context", lambda x: x * 1.001, decode_only=True))

    def oracle(self, mode: Mode = "trained") -> Oracle:
        return Oracle(
            config=CONFIG, weights=WEIGHTS, compressed_ids=IDS, mode=mode, weights_hash="tiny"
        )


def at(
    site: str, change: Callable[[torch.Tensor], torch.Tensor], *, decode_only: bool = False
) -> Change:
    """Change the tensor of one site."""

    def changed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        is_decode = tensor.shape[1] == 1
        return change(tensor) if name == site and (is_decode or not decode_only) else tensor

    return changed
