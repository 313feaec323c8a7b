"""An engine that emits a token every so many milliseconds, and can misbehave as told.

Settings: engine "tests.serve.paced_engine:make_engine", engine_options:
  step_ms 20       time of a step; staggered true: requests have phases of their own, spread evenly
  seqs 256         requests decoded together
  start            list of acts before it is ready: ["line text", 0.5, ...]: print a line, sleep;
                   "exit 3": end; "hang": sleep for good; "crash": raise; "wait for FILE";
                   "end slowly 2": take so many seconds between the last line and the end
  finish_when      FILE: the last token of an answer waits until it is there
  strays 0         helpers in sessions of their own that ignore SIGTERM
  echo false       true: a prompt that is not known is given back, over and over
  answer           "right" (knows the canary's questions), "zeros", "nan", "same", "repeat", "wrong"
  die_after        end with code 3 after so many steps; stall_after: sleep for good
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.serve.engines.interface import (
    Emission,
    EngineContext,
    EngineInfo,
    EngineRequest,
    FinishReason,
    Lockstep,
    ReportProgress,
    Solo,
)
from dih20.serve.gate.questions import CANARY
from dih20.serve.service import CANARY_FOLDER

NAME = "tests.serve.paced_engine:make_engine"
END = 1
GOLDEN = 0.6180339887  # multiples of it, modulo 1, are spread evenly whatever their number
STRAY = ["sh", "-c", "trap '' TERM HUP; while :; do sleep 60; done"]
TEXT = "天空是蓝色的, one two three. "


@dataclass
class _Running:
    request: EngineRequest
    answer: list[int]
    place: int
    due_ns: int  # when staggered


class PacedEngine:
    """Answers the canary's questions rightly, and anything else with the same sentence again and again."""

    def __init__(self, context: EngineContext) -> None:
        self._options: dict[str, Any] = context.settings.engine_options
        self._step_ns = int(self._options.get("step_ms", 20) * 1e6)
        self._running: dict[int, _Running] = {}
        self._failed: list[Emission] = []
        self._next_ns, self._steps, self._added = 0, 0, 0

    def start(self, report: ReportProgress) -> EngineInfo:
        from tokenizers import Tokenizer

        report("loading", "paced engine", 0.5)
        for _ in range(self._options.get("strays", 0)):
            subprocess.Popen(STRAY, start_new_session=True)
        for act in self._options.get("start", []):
            _act(act)
        report("warming", "paced engine")
        tokenizer = Tokenizer.from_file(str(CANARY_FOLDER / "tokenizer.json"))
        self._filler = tokenizer.encode(TEXT).ids
        rows = json.loads(CANARY.read_text(encoding="utf-8"))
        self._known = {tuple(tokenizer.encode(r["prompt"]).ids): list(r["ids"]) for r in rows}
        return EngineInfo(
            name="paced",
            version="1",
            vocab_size=tokenizer.get_vocab_size(),
            max_model_len=self._options.get("max_model_len", 4096),
            max_num_seqs=self._options.get("seqs", 256),
            end_token_ids=[END],
        )

    def lockstep(self) -> Lockstep:
        return Solo()

    def add(self, request: EngineRequest) -> None:
        if request.prompt[:3] == [7, 7, 7]:
            refused = Emission(
                id=request.id, tokens=[], emitted_ns=time.monotonic_ns(), finish="error",
                message="the engine does not like 7 7 7",
            )  # fmt: skip
            self._failed.append(refused)
            return
        filler = list(request.prompt) if self._options.get("echo") else self._filler
        answer = self._known.get(tuple(request.prompt)) or filler * (
            request.max_tokens // len(filler) + 1
        )
        if self._options.get("answer") == "wrong":
            answer = [300, 301, 302, END]
        if self._options.get("answer") == "repeat":
            answer = [300] * 5 + [END]
        self._added += 1
        phase_ns = int(self._added * GOLDEN % 1 * self._step_ns)
        self._running[request.id] = _Running(request, answer, 0, time.monotonic_ns() + phase_ns)

    def cancel(self, id: int) -> None:
        self._running.pop(id, None)

    def has_work(self) -> bool:
        return bool(self._running or self._failed)

    def step(self) -> list[Emission]:
        self._steps += 1
        if self._steps == self._options.get("die_after"):
            print("the paced engine ends as told", flush=True)
            os._exit(3)
        if self._steps == self._options.get("stall_after"):
            time.sleep(3600)
        if self._options.get("staggered"):
            return self._staggered()
        going = [each for each in self._running.values() if not self._is_held(each)]
        emissions = self._take_failed() + [self._emit(each) for each in going]
        self._next_ns = max(self._next_ns + self._step_ns, time.monotonic_ns())
        return self._at(self._next_ns, emissions)

    def _is_held(self, running: _Running) -> bool:
        """Say whether this one's last token waits for the file of finish_when."""
        file = self._options.get("finish_when")
        is_last = running.place == running.request.max_tokens - 1
        return file is not None and is_last and not Path(file).exists()

    def _staggered(self) -> list[Emission]:
        first = min((each.due_ns for each in self._running.values()), default=0)
        due = [each for each in self._running.values() if each.due_ns <= first + 100_000]
        for each in due:
            each.due_ns += self._step_ns
        return self._at(first, self._take_failed() + [self._emit(each) for each in due])

    def _at(self, due_ns: int, emissions: list[Emission]) -> list[Emission]:
        """Wait, then stamp: what a fake knows beforehand must not count as the gateway's time."""
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        now = time.monotonic_ns()
        for each in emissions:
            each.emitted_ns = now
        return emissions

    def _take_failed(self) -> list[Emission]:
        failed, self._failed = self._failed, []
        return failed

    def _emit(self, running: _Running) -> Emission:
        request, place = running.request, running.place
        token = running.answer[place]
        running.place += 1
        finish: FinishReason | None = None
        if token == END:
            finish = "stop"
        elif running.place >= request.max_tokens:
            finish = "length"
        if finish:
            del self._running[request.id]
        wanted = request.logprobs is not None
        value = self._log_prob(place)
        top = [[(token + i, value - i) for i in range(request.logprobs or 0)]]
        return Emission(
            id=request.id, tokens=[token], emitted_ns=0, finish=finish,
            logprobs=[value] if wanted else [], top=top if request.logprobs else [],
        )  # fmt: skip

    def _log_prob(self, place: int) -> float:
        kind = self._options.get("answer", "right")
        fixed = {"zeros": 0.0, "nan": float("nan"), "same": -1.25}
        return fixed.get(kind, -0.1 - 0.01 * (place % 7))

    def memory(self) -> tuple[int, int] | None:
        return None

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


def _act(act: str | float) -> None:
    if isinstance(act, int | float):
        time.sleep(act)
    elif act == "hang":
        time.sleep(3600)
    elif act == "crash":
        raise RuntimeError("the paced engine crashed as told")
    elif act.startswith("exit "):
        os._exit(int(act.split()[1]))
    elif act.startswith("wait for "):
        while not Path(act.removeprefix("wait for ")).exists():
            time.sleep(0.02)
    elif act.startswith("end slowly "):
        atexit.register(time.sleep, float(act.split()[2]))
    else:
        print(act, flush=True)


def make_engine(context: EngineContext) -> PacedEngine:
    return PacedEngine(context)
