"""Turn what a step of DeepInfer gives back into emissions.

A step returns addresses of RequestOutput objects, one per token, that live until the next step; the
class reads a field by address without a copy. One request may have several in a step, when draft
tokens were accepted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dih20.serve.engines.interface import Emission, EngineRequest, FinishReason
from dih20.serve.engines.refusal import refused

_ENDS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_WORDS = {
    "abort": "the engine dropped the request",
    "prompt_length_exceeded": "the prompt is longer than the engine's limit or its cache",
    "insufficient_system_resource": "the engine's cache is full; ask again later",
}


@dataclass
class _Said:
    """What one step gave one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: FinishReason | None = None
    fault: str = ""


class Outputs:
    """Requests that are running, by number, and how to read what comes back for them."""

    def __init__(self, request_output: Any) -> None:
        self._read = request_output  # deepinfer._C.engine.RequestOutput
        self._requests: dict[int, EngineRequest] = {}

    def begin(self, request: EngineRequest) -> None:
        self._requests[request.id] = request

    def forget(self, id: int) -> bool:
        """Drop a request; whatever still comes for it is left out. Whether it was known."""
        return self._requests.pop(id, None) is not None

    def emissions(self, addresses: Iterable[int]) -> tuple[list[Emission], list[int]]:
        """Give the emissions of a step, and the requests to abort: they ended by a stop token."""
        said: dict[int, _Said] = {}
        stopped: list[int] = []
        for address in addresses:
            id = int(self._read.get_request_id(address))
            request = self._requests.get(id)
            if request is None:
                continue
            row = said.setdefault(id, _Said())
            if row.finish is None and not row.fault and self._take(address, request, row):
                stopped.append(id)
        for id, row in said.items():
            if row.finish or row.fault:
                self.forget(id)
        return [self._emission(id, row) for id, row in said.items()], stopped

    def _take(self, address: int, request: EngineRequest, row: _Said) -> bool:
        """Add one token to a row; True when it is a stop token that the engine does not know."""
        reason = self._read.get_finish_reason(address)
        finished = bool(self._read.get_finished(address))
        if finished and reason not in _ENDS:
            row.fault = _WORDS.get(reason, f"the engine ended the request: {reason}")
            return False
        token = int(self._read.get_token_id(address))
        row.tokens.append(token)
        if request.logprobs is not None:
            row.logprobs.append(float(self._read.get_token_logprobs(address)))
        if request.logprobs:
            tokens, values = (
                self._read.get_top_token_ids(address),
                self._read.get_top_logprobs(address),
            )
            row.top.append([(int(t), float(v)) for t, v in zip(tokens, values, strict=True)])
        if finished:
            row.finish = _ENDS[reason]
        elif token in request.stop_token_ids:
            row.finish = "stop"
            return True
        return False

    def _emission(self, id: int, row: _Said) -> Emission:
        if row.fault:
            return refused(id, row.fault)
        return Emission(
            id=id,
            tokens=row.tokens,
            emitted_ns=time.monotonic_ns(),
            logprobs=row.logprobs,
            top=row.top,
            finish=row.finish,
        )
