"""The next token of one request; log-probs are those of the model, before temperature and top_p."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dih20.serve.engines.interface import EngineRequest

GREEDY_BELOW = 1e-5  # as DeepInfer: a temperature below it is greedy


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A token, its natural log-prob, and the best alternatives with theirs, best first."""

    token: int
    log_prob: float
    top: list[tuple[int, float]]

    @property
    def is_a_number(self) -> bool:
        """False when the logits held NaN or infinity: then no token means anything."""
        return math.isfinite(self.log_prob)


class Sampler:
    """The choices of one request: its own generator, so that others do not change its answer."""

    def __init__(self, request: EngineRequest) -> None:
        self._temperature, self._top_p = request.temperature, request.top_p
        self._best = request.logprobs or 0
        self._generator = torch.Generator()
        if request.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(request.seed & 0xFFFF_FFFF_FFFF_FFFF)

    def choose(self, logits: torch.Tensor) -> Choice:
        """Choose a token; ties under greedy go where v41's own answers go.

        Args:
            logits: fp32, (vocab,).
        """
        log_probs = torch.log_softmax(logits.float(), dim=-1).cpu()
        best = log_probs.max(dim=-1)
        token = int(best.indices)
        if self._temperature >= GREEDY_BELOW and bool(best.values.isfinite()):
            token = self._draw(log_probs)
        return Choice(token=token, log_prob=float(log_probs[token]), top=self._top(log_probs))

    def _draw(self, log_probs: torch.Tensor) -> int:
        """Draw from the smallest set of tokens whose probability reaches top_p."""
        scaled = (log_probs - log_probs.max()).double() / self._temperature
        probabilities, order = torch.softmax(scaled, dim=-1).sort(descending=True, stable=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= self._top_p, 0.0)
        place = torch.multinomial(probabilities, 1, generator=self._generator)
        return int(order[place])

    def _top(self, log_probs: torch.Tensor) -> list[tuple[int, float]]:
        if not self._best:
            return []
        values, tokens = log_probs.topk(min(self._best, log_probs.shape[-1]))
        return list(zip(tokens.tolist(), values.tolist(), strict=True))
