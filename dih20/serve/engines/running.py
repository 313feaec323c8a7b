"""One request on its way through the reference: what is read, what is said, and why it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from dih20.serve.engines.interface import Emission, EngineRequest, FinishReason
from dih20.serve.engines.refusal import refused
from dih20.serve.engines.sampling import Choice, Sampler
from v41.cache import Cache

_NO_NUMBER = "the model's log-probs are not numbers: its logits hold NaN or infinity"


class Running:
    """Its cache lives as long as this object does: forgetting a request frees everything."""

    def __init__(self, request: EngineRequest, end_token_ids: Sequence[int], longest: int) -> None:
        self.request = request
        self.cache: Cache | None = None
        self._sampler = Sampler(request)
        self._ends = set(request.stop_token_ids)
        if not request.ignore_eos:
            self._ends |= set(end_token_ids)
        self._room = min(request.max_tokens, longest - len(request.prompt))
        self._read, self._said, self._last = 0, 0, -1

    def next_tokens(self, chunk: int) -> list[int]:
        """Give what the next pass takes in: a chunk of the prompt, or the last token said."""
        prompt = self.request.prompt
        if self._read < len(prompt):
            return list(prompt[self._read : self._read + chunk])
        return [self._last]

    def took(self, count: int, cache: Cache, logits: torch.Tensor) -> Emission | None:
        """Note a pass over `count` tokens; give the next token unless the prompt goes on.

        Args:
            logits: fp32, (vocab,), of the last of them.
        """
        self.cache = cache
        self._read += count
        if self._read < len(self.request.prompt):
            return None
        choice = self._sampler.choose(logits)
        if not choice.is_a_number:
            return refused(self.request.id, _NO_NUMBER)
        self._said, self._last = self._said + 1, choice.token
        return self._emission(choice)

    def _emission(self, choice: Choice) -> Emission:
        asked = self.request.logprobs is not None
        return Emission(
            id=self.request.id,
            tokens=(choice.token,),
            emitted_ns=time.monotonic_ns(),
            logprobs=(choice.log_prob,) if asked else (),
            top=(choice.top,) if choice.top else (),
            finish=self._finish(choice.token),
        )

    def _finish(self, token: int) -> FinishReason | None:
        if token in self._ends:
            return "stop"
        return "length" if self._said >= self._room else None
