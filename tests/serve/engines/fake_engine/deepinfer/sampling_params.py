"""What is asked of the sampler."""

from __future__ import annotations


class SamplingParams:
    def __init__(
        self,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        ignore_eos: bool = False,
        max_tokens: int = 16,
        top_logprobs: int = 0,
        seq_seed: int | None = None,
    ) -> None:
        if top_logprobs > 1000:
            raise ValueError(f"top_logprobs must be in [0, 1000], got {top_logprobs}.")
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.ignore_eos, self.max_tokens = ignore_eos, max_tokens
        self.top_logprobs, self.seq_seed = top_logprobs, seq_seed
