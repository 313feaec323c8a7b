"""The model that is trusted: it can compute any site from the tensors of any dump."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from dih20.errors import DumpUnusable
from dih20.parity.dump import DumpReader
from v41.config import ModelConfig
from v41.model import Reference
from v41.numerics import Mode, Numerics

Seen = Callable[[int, str, torch.Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The reference's weights and numeric mode.

    weights: fp32, as v41.checkpoint.load_weights gives them for `mode`.
    weights_hash: of the checkpoint; a dump of other weights is refused.
    checkpoint: where the weights came from, for questions about their stored bytes.
    """

    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    compressed_ids: torch.Tensor | None
    mode: Mode
    weights_hash: str
    checkpoint: Path | None = None

    @property
    def numerics(self) -> Numerics:
        return Numerics.of(self.mode)

    def run(
        self,
        dump: DumpReader,
        seen: Seen,
        *,
        forced: bool,
        weights: Mapping[str, torch.Tensor] | None = None,
        numerics: Numerics | None = None,
        last_step: int | None = None,
    ) -> None:
        """Run the dump's tokens; `seen` gets (step, site, what the reference computes there).

        forced: each site's consumers get the dump's tensor instead, so that every site is computed
            from the dump's own inputs and no error travels further than one site.
        weights, numerics: instead of the oracle's own.
        """
        step = 0

        def tap(site: str, tensor: torch.Tensor) -> torch.Tensor:
            seen(step, site, tensor)
            if forced and dump.is_stored(step, site):
                return _like(dump.tensor(step, site), tensor, site)
            return tensor

        model = Reference(
            self.config,
            self.weights if weights is None else weights,
            numerics=numerics or self.numerics,
            compressed_ids=self.compressed_ids,
            tap=tap,
        )
        cache = model.new_cache()
        with torch.no_grad():
            for step, tokens in _steps(dump):
                model.extend(tokens, cache)
                if step == last_step:
                    return


def _steps(dump: DumpReader) -> Iterator[tuple[int, torch.Tensor]]:
    for step, tokens in enumerate(dump.facts.tokens):
        yield step, torch.tensor(tokens, dtype=torch.int64)


def _like(stored: torch.Tensor, computed: torch.Tensor, site: str) -> torch.Tensor:
    if stored.shape != computed.shape:
        raise DumpUnusable(
            found=f"{site} is {tuple(stored.shape)} in the dump",
            expected=f"{tuple(computed.shape)}, as the reference makes it",
            remedy="correct the shape of the site in the site map, and dump again",
        )
    return stored.to(computed.dtype)
