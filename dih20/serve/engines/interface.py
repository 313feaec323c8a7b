"""What an engine must do to be served, and what travels to and from it.

A factory makes one engine per rank process: `factory(context) -> Engine`. The rank's loop calls,
in this order: start once; then add, cancel and step as they come; drain; close. One thread calls
everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from dih20.serve.settings import Settings

Phase = Literal["starting", "loading", "warming"]
FinishReason = Literal["stop", "length", "error"]


class ReportProgress(Protocol):
    """Say what a start is doing; each call counts as progress. fraction: of the phase, 0 to 1."""

    def __call__(self, phase: Phase, line: str, fraction: float | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """What a factory is given. rendezvous: a fresh path that all ranks of this start share."""

    settings: Settings
    rank: int
    ranks: int
    rendezvous: Path


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What a started engine can do. details: shown by /version, plain values."""

    name: str
    version: str
    vocab_size: int
    max_model_len: int  # prompt and answer
    max_num_seqs: int  # requests that this rank decodes together
    end_token_ids: Sequence[int]
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One request. Text, stop strings and chat templates are the gateway's job.

    temperature 0 is greedy. logprobs: None for none, 0 for the chosen token's only, k for the k
    best as well. The answer ends with an end token of the model (unless ignore_eos), a token of
    stop_token_ids, or max_tokens.
    """

    id: int
    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False


@dataclass(slots=True, kw_only=True)
class Emission:
    """What one step gave one request. Not frozen: that costs a step of 64 requests 0.1 ms.

    tokens: usually one; the end or stop token is the last of them when finish is "stop".
    logprobs: natural, of the tokens, from the logits before temperature and top_p; as many as
        tokens when the request asked, else empty.
    top: per token the k best as (token, log-prob), best first; empty unless k > 0.
    emitted_ns: time.monotonic_ns() when the step's tokens were known.
    """

    id: int
    tokens: Sequence[int]
    emitted_ns: int
    logprobs: Sequence[float] = ()
    top: Sequence[Sequence[tuple[int, float]]] = ()
    finish: FinishReason | None = None
    message: str = ""  # with finish "error": what the client is told


@dataclass(frozen=True)
class Agreed:
    """What all ranks agreed on. work: any rank has some. wakes: the wake-ups that every rank has seen.

    Not the most that any has seen: a rank that reads a wake-up before the rank with the work reads its
    request would take it for answered, sleep, and leave that rank waiting.
    """

    work: bool
    wakes: int


class Lockstep(Protocol):
    """Keep ranks together: collective, called once a turn by every rank that is awake.

    A rank is awake when the last agreement said work, or when it has seen more wake-ups than that
    agreement knew. The gateway counts wake-ups and sends each to every rank.
    """

    def agree(self, work: bool, wakes: int) -> Agreed: ...


class Solo:
    """The lockstep of a rank that depends on no other."""

    def agree(self, work: bool, wakes: int) -> Agreed:
        return Agreed(work=work, wakes=wakes)


class Engine(Protocol):
    """One rank of an engine. Any exception out of it ends this rank, and with it the server."""

    def start(self, report: ReportProgress) -> EngineInfo:
        """Load the weights, warm up. Standard output and error are read line by line as well."""
        ...

    def lockstep(self) -> Lockstep:
        """Give how ranks agree; called once, after start. Solo() for one rank."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Take a request; it begins with one of the next steps. Never blocks for room.

        A request that cannot be run is answered by an emission with finish "error", not raised.
        """
        ...

    def cancel(self, id: int) -> None:
        """Forget a request; an unknown id is no error. Nothing is emitted for it any more."""
        ...

    def has_work(self) -> bool: ...

    def step(self) -> list[Emission]:
        """Run one step; a padding step when this rank has no work but others do."""
        ...

    def memory(self) -> tuple[int, int] | None:
        """Give bytes used and in all of this rank's GPU; None without one. Cheap."""
        ...

    def drain(self) -> None:
        """Hear that no new request will come."""
        ...

    def close(self) -> None:
        """Give everything back; the process ends after it."""
        ...


Factory = Callable[[EngineContext], Engine]
