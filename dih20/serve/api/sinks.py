"""Where tokens of one request go: straight to the socket, or into one response."""

from __future__ import annotations

import abc
import asyncio
from typing import Any

from dih20.serve.api.answer import Answer, NotANumber, without_end

NOT_A_NUMBER = "the engine gave a log-prob that is not a number: its answer is worthless"


class Sink(abc.ABC):
    """What both kinds share: when the answer is over, and whether it broke."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: tuple[int, str] | None = None
        self.first_ns = 0

    @abc.abstractmethod
    def take(self, emission: list[Any]) -> bool:
        """Take one emission; True: want no more."""

    def take_one(self, token: int, emitted_ns: int) -> bool:
        """Take one token that came with nothing else."""
        return self.take([0, [token], [], [], None, emitted_ns, ""])

    def fail(self, message: str) -> None:
        """Hear that the server cannot go on."""
        self.end((503, message))

    def end(self, error: tuple[int, str] | None) -> None:
        if not self.over.done():
            self.error = error
            self.over.set_result(None)


class WholeSink(Sink):
    """Keep the answer until it is over."""

    def __init__(self, answer: Answer, with_log_probs: bool) -> None:
        super().__init__(answer)
        self._with_log_probs = with_log_probs
        self._pieces: list[str] = []
        self.log_probs: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, emission: list[Any]) -> bool:
        _, tokens, values, top, finish, emitted_ns, message = emission
        self.first_ns = self.first_ns or emitted_ns
        if finish == "error":
            self.end((400, message))
            return True
        if self._with_log_probs:
            try:
                self._keep(without_end(tokens, finish), values, top)
            except NotANumber:
                self.end((500, NOT_A_NUMBER))
                return True
        self._pieces.append(self.answer.take(tokens, finish))
        if self.answer.finish is None:
            return False
        self.end(None)
        return True

    def _keep(self, tokens: list[int], values: list[float | None], top: list[Any]) -> None:
        shape = self.answer.log_probs(tokens, values[: len(tokens)], top[: len(tokens)])
        if self.log_probs is None:
            self.log_probs = shape
            return
        for key, rows in shape.items():
            if isinstance(rows, list):
                self.log_probs[key] += rows
