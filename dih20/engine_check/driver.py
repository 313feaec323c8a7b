"""What the stages ask of an engine; the real one is in engine_driver.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

GREEDY = 0.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request.

    golden: tokens that are taken whatever is sampled; their log-probs are what is asked for.
    past_end: go on after the end of the text; golden tokens do so anyway.
    top: how many of the likeliest tokens to give at each step.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    golden: tuple[int, ...] = ()
    past_end: bool = False
    temperature: float = 1.0
    prompt_logprobs: bool = False
    top: int = 0


@dataclass(kw_only=True)
class Reply:
    """What came. best: the likeliest token of each step, where asked for; fault: "" when sound."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One sequence after one decode step: its logits, fp32 (vocab,), and a hash of its cache."""

    request: int
    step: int
    logits: Any
    cache: str


class Driver(Protocol):
    """An engine that has started."""

    @property
    def model(self) -> Any:
        """Give the module tree."""

    def generate(self, asks: Sequence[Ask]) -> list[Reply]:
        """Run the requests together until each has ended."""

    def skip_step(self) -> bool:
        """Say whether the forward pass that runs now is none of a request."""

    def sync_guard(self) -> AbstractContextManager[None]:
        """Run with the engine's own guard against synchronisation."""

    def eager(self) -> AbstractContextManager[None]:
        """Decode without captured graphs."""

    def graph_replays(self) -> int:
        """Give how many captured graphs were replayed since the engine started."""

    def overlaps(self) -> bool:
        """Say whether the engine has overlapped scheduling on."""

    def logits_through(self, change: Callable[[Any], Any]) -> AbstractContextManager[None]:
        """Let the sampler see what `change` makes of the logits, fp32 (rows, vocab)."""

    def step_rows(self) -> AbstractContextManager[list[StepRow]]:
        """Record every sequence after every decode step."""

    def clear_caches(self) -> None:
        """Set every byte of every cache to zero; no request may be running."""

    def close(self) -> None: ...
