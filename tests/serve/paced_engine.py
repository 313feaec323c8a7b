"""An engine without a model: tokens at a chosen pace, and starts that go wrong in chosen ways.

It answers the canary's fixed questions as the canary does, so that the built-in known-answer gate
passes; any other prompt is given back token by token, over and over, until max_tokens.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dih20.serve.engines.interface import (
    Emission,
    EngineContext,
    EngineInfo,
    EngineRequest,
    FinishReason,
    ReportProgress,
    Solo,
)
from v41.canary import FOLDER
from v41.canary.questions import QUESTIONS

NAME = "tests.serve.paced_engine:make_engine"
EXIT_CODE = 3


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What engine_options may say.

    pattern: lockstep emits a token of every request at one instant, as a batched step does;
    staggered gives each request a phase of its own.
    start: well; silent (says one line, then nothing, forever); dies (exits with code 3); mute
    (becomes ready and never emits); wrong (ready, and answers the questions wrong).
    """

    step_ms: float = 0.0
    pattern: Literal["lockstep", "staggered"] = "lockstep"
    start: Literal["well", "silent", "dies", "mute", "wrong"] = "well"
    load_lines: int = 2
    line_every_s: float = 0.0
    max_num_seqs: int = 256
    max_model_len: int = 32_768
    tokens_per_step: int = 1
    die_on_token: int | None = None  # a prompt that holds this token ends the process


@dataclass
class Row:
    request: EngineRequest
    answer: list[int]
    ends: bool  # the answer ends by itself
    due_ns: int
    given: int = 0


class PacedEngine:
    def __init__(self, context: EngineContext) -> None:
        self._pace = Pace(**context.settings.engine_options)
        self._rows: dict[int, Row] = {}
        self._waiting: list[EngineRequest] = []
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self._next_ns = 0
        self._added = 0
        self._step_ns = int(self._pace.step_ms * 1e6)

    def start(self, report: ReportProgress) -> EngineInfo:
        pace = self._pace
        for number in range(pace.load_lines):
            report("loading", f"part {number} of {pace.load_lines}", number / pace.load_lines)
            time.sleep(pace.line_every_s)
        if pace.start == "silent":
            time.sleep(3600)
        if pace.start == "dies":
            print("the weights of layer 7 are not there", flush=True)
            os._exit(EXIT_CODE)
        report("warming", "warming up", None)
        tokenizer, ends = _tokenizer()
        for question in QUESTIONS:
            answer = tokenizer(question.answer)
            self._answers[tuple(tokenizer(question.prompt))] = answer[:: self._direction()]
        self._end = ends
        return EngineInfo(
            name="paced",
            version="1",
            vocab_size=1024,
            max_model_len=pace.max_model_len,
            max_num_seqs=pace.max_num_seqs,
            end_token_ids=[ends],
        )

    def _direction(self) -> int:
        return -1 if self._pace.start == "wrong" else 1

    def lockstep(self) -> Solo:
        return Solo()

    def add(self, request: EngineRequest) -> None:
        if self._pace.die_on_token in request.prompt:
            os._exit(EXIT_CODE)
        self._waiting.append(request)

    def cancel(self, id: int) -> None:
        self._rows.pop(id, None)
        self._waiting = [request for request in self._waiting if request.id != id]

    def has_work(self) -> bool:
        return bool(self._rows or self._waiting)

    def step(self) -> list[Emission]:
        self._admit()
        due_ns = min((row.due_ns for row in self._rows.values()), default=0)
        if (wait_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(wait_ns / 1e9)
        if self._pace.start == "mute":
            time.sleep(0.05)
            return []
        now = time.monotonic_ns()
        due = [row for row in self._rows.values() if row.due_ns <= now]
        return [self._emit(row, now) for row in due]

    def memory(self) -> tuple[int, int] | None:
        return None

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _admit(self) -> None:
        while self._waiting and len(self._rows) < self._pace.max_num_seqs:
            request = self._waiting.pop(0)
            known = self._answers.get(tuple(request.prompt))
            answer = [*known, self._end] if known else list(request.prompt)
            self._rows[request.id] = Row(
                request=request, answer=answer, ends=known is not None, due_ns=self._first_due()
            )

    def _first_due(self) -> int:
        now, step = time.monotonic_ns(), self._step_ns
        if not step:
            return now
        if self._pace.pattern == "staggered":
            # the golden ratio spreads phases evenly whatever their number
            self._added += 1
            return now + int(step * (self._added * 0.6180339887 % 1))
        return now + step - now % step  # all rows on one grid

    def _emit(self, row: Row, now: int) -> Emission:
        request, end = row.request, row.given + self._pace.tokens_per_step
        end = min(end, request.max_tokens, len(row.answer) if row.ends else end)
        tokens = [row.answer[at % len(row.answer)] for at in range(row.given, end)]
        row.given = end
        row.due_ns += self._step_ns
        finish: FinishReason | None = None
        stops = [at for at, token in enumerate(tokens) if token in request.stop_token_ids]
        if stops:
            tokens, finish = tokens[: stops[0] + 1], "stop"
        elif row.ends and end == len(row.answer) and not request.ignore_eos:
            finish = "stop"
        elif end >= request.max_tokens or (row.ends and end == len(row.answer)):
            finish = "length"
        if finish:
            del self._rows[request.id]
        wanted = request.logprobs
        log_probs = [-0.01 - 0.01 * ((token * 7 + at) % 17) for at, token in enumerate(tokens, end)]
        return Emission(
            id=request.id,
            tokens=tokens,
            emitted_ns=now,
            logprobs=log_probs if wanted is not None else [],
            top=[
                [((token + j) % 1024, value - j) for j in range(wanted)]
                for token, value in zip(tokens, log_probs, strict=True)
            ]
            if wanted
            else [],
            finish=finish,
        )


def make_engine(context: EngineContext) -> PacedEngine:
    return PacedEngine(context)


def _tokenizer() -> tuple[Callable[[str], list[int]], int]:
    """Give the canary's encoder, as its prompts are encoded for completions, and its end token."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ends = json.loads((FOLDER / "config.json").read_text())["eos_token_id"]

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    return encode, ends
