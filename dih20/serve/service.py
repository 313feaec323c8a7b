"""Start the engine, gate it, keep watch, drain, stop: the life of a server in order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dih20 import __version__
from dih20.errors import ConfigError, EngineStartFailed, GateFailed, RankLost, ServeError
from dih20.serve.fleet import Fleet
from dih20.serve.gate.asking import Verdict, ask_all, known_prompt
from dih20.serve.gate.questions import known_questions
from dih20.serve.gate.recording import record
from dih20.serve.gpu_memory import GpuMemory, read_gpu_memory
from dih20.serve.hearing import Hearing, loss_of
from dih20.serve.log import say
from dih20.serve.metrics import Metrics
from dih20.serve.ranks import RankProcess
from dih20.serve.requests import RequestTable
from dih20.serve.settings import Settings, load_tokens
from dih20.serve.state import LastStart, State
from dih20.serve.text.codec import Codec
from dih20.serve.text.tokenising import Tokenising

_LOOK_EVERY_S, _GPUS_EVERY_S = 0.25, 5.0
_CANARY_TOKENS = 1024  # no real checkpoint has so small a vocabulary
CANARY_FOLDER = Path(__file__).parents[2] / "v41" / "canary" / "data"


class Service:
    """What the API answers from, and what runs the engine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = settings.instance or secrets.token_hex(8)
        subject = {"engine": settings.engine, "model": str(settings.model), "ranks": settings.ranks}
        self.state = State(LastStart(settings.state_dir, subject))
        self.metrics, self.table = Metrics(), RequestTable(settings.limits.max_queue)
        self.tokenising = Tokenising(settings.limits.max_tokenising)
        self.codec = Codec.load(
            settings.model or CANARY_FOLDER, canary=settings.gate.answers is None
        )
        if reason := settings.why_not(is_canary=len(self.codec.table) <= _CANARY_TOKENS):
            raise ConfigError(
                found=reason,
                expected="ranks: 1, or the canary",
                remedy="see docs/serving.md; with a real checkpoint, name gate.answers too",
            )
        self.questions, self._remark = known_questions(settings)
        for question in self.questions:
            known_prompt(self.codec, question)  # what cannot be asked is said before the start
        self.tokens = load_tokens(settings.tokens_file)
        self.hearing = Hearing(
            self.state,
            self.metrics,
            self.table,
            changed=self._wake,
            lost=self._lost,
            close_timeout_s=settings.deadlines.close_timeout_s,
        )
        self.fleet = Fleet(settings, self.hearing.hear)
        self.verdict: Verdict | None = None
        self.info: dict[str, Any] = {}
        self.gpus: tuple[GpuMemory, ...] = ()
        self.last_error, self.last_error_at = "", 0.0
        self._changed, self._stop = asyncio.Event(), asyncio.Event()
        self._fault: ServeError | None = None
        self.metrics.phase = lambda: self.state.phase
        self.metrics.running = lambda: len(self.table.running)
        self.metrics.waiting = lambda: len(self.table.waiting)
        self.metrics.step_age = lambda: self.table.step_age_s or 0.0
        self.metrics.gpu_memory = lambda: [
            (rank.rank, *rank.memory) for rank in self.fleet.ranks if rank.memory
        ]

    def stop(self) -> None:
        """Ask for an orderly end; may be called more than once."""
        self._stop.set()
        self._changed.set()

    def evidence(self) -> dict[str, Any] | None:
        """Give what the gate found; None while it has not."""
        return None if self.verdict is None else asdict(self.verdict)

    def _origin(self) -> dict[str, str]:
        engine = {"engine": f"{self.info['name']} {self.info['version']}"}
        return engine | self.settings.identities

    def identity(self) -> dict[str, Any]:
        """Give what is served: image, patchset, wheels, engine, checkpoint."""
        return {
            "version": __version__,
            "model": self.settings.served_name,
            "engine": self.info or {"name": self.settings.engine},
            "identities": self.settings.identities,
        }

    async def run(self) -> ServeError | None:
        """Live until stopped or failed; give the fault, if that was the end."""
        try:
            await self._start()
            if not self._stop.is_set():
                await self._gate()
            if not self._stop.is_set():
                self.state.enter("ready")
                say(f"ready after {self.state.elapsed_s:.1f} s")
                await self._watch()
            await self._drain()
            return None
        except ServeError as fault:
            self.note_error(fault.found)
            self.state.fail(fault.found)
            say(str(fault))
            self.table.fail_all(f"the server stopped: {fault.found.splitlines()[0]}")
            await self._end_ranks(0.0)
            await self._linger()
            return fault
        finally:
            await self._end_ranks(self.settings.deadlines.close_timeout_s)
            if self.state.phase != "failed":
                self.state.enter("stopped")

    async def watch_gpus(self) -> None:
        """Read the GPUs' memory now and then, for the status page."""
        while True:
            self.gpus = await read_gpu_memory()
            await asyncio.sleep(_GPUS_EVERY_S)

    async def _end_ranks(self, patience_s: float) -> None:
        if left := await self.fleet.stop(patience_s):
            say(f"processes that could not be ended: {left}")

    async def _linger(self) -> None:
        """Let those who ask hear why it failed; a signal cuts it short."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.deadlines.failed_linger_s):
                await self._stop.wait()

    def note_error(self, text: str) -> None:
        """Keep an error for the status page."""
        self.last_error, self.last_error_at = text, time.monotonic()

    async def _start(self) -> None:
        """Start the ranks and wait as long as they live and make progress."""
        await self.fleet.start()
        patience = self.settings.deadlines.no_progress_timeout_s
        while any(rank.info is None for rank in self.fleet.ranks) and not self._stop.is_set():
            await self._look()
            silent = self.state.clock() - self.state.progressed
            if silent > patience:
                raise self._fail(EngineStartFailed(
                    found=f"no progress of the engine for {silent:.0f} s; the last line was: "
                    f"{self.state.line or '(none)'}",
                    expected=f"a line or a phase within no_progress_timeout_s = {patience:g} s",
                    remedy="look at the log; if the engine was at work, raise no_progress_timeout_s",
                ))  # fmt: skip
        if not self._stop.is_set():
            self.info = dict(self.fleet.ranks[0].info or {})
            self.table.open(self.fleet)

    async def _gate(self) -> None:
        self.state.enter("gating")
        asking = asyncio.create_task(
            ask_all(
                self.table,
                self.fleet.ranks,
                self.codec,
                self.questions,
                first_ids=self.settings.gate.first_ids,
                timeout_s=self.settings.deadlines.gate_timeout_s,
                remark=self._remark,
            )
        )
        asking.add_done_callback(lambda _: self._changed.set())
        try:
            while not asking.done() and not self._stop.is_set():
                await self._look()
        finally:
            asking.cancel()
        if self._stop.is_set():
            return
        self.verdict = asking.result()
        if not self.verdict.passed:
            raise self._fail(GateFailed(
                found=f"the engine's answer is wrong: {self.verdict.reason}",
                expected="the known answers of the gate",
                remedy="do not serve this build; compare it with the reference by `./inv parity`",
            ))  # fmt: skip
        if self.settings.gate.record_answers:
            try:
                record(self.settings.gate.record_answers, self.verdict, self._origin())
            except ServeError as fault:
                raise self._fail(fault) from None
            say(f"answers recorded in {self.settings.gate.record_answers}")

    async def _watch(self) -> None:
        """Keep an eye on a running engine."""
        limit = self.settings.deadlines.stall_timeout_s
        while not self._stop.is_set():
            await self._look()
            age = self.table.step_age_s
            if age is not None and age > limit:
                raise self._fail(RankLost(
                    found=f"no engine step for {age:.0f} s while {self.table.pending} requests wait",
                    expected=f"a step within stall_timeout_s = {limit:g} s",
                    remedy="look at the log of the ranks",
                ))  # fmt: skip

    async def _drain(self) -> None:
        """Let requests that run finish, for a while; the rest get a clear error."""
        self.state.enter("draining")
        self.fleet.drain()
        until = self.state.clock() + self.settings.deadlines.drain_timeout_s
        while self.table.pending and self.state.clock() < until:
            await self._look()
        self.table.fail_all("the server is shutting down")

    async def _look(self) -> None:
        """Wait until something happened, or a moment; raise what went wrong meanwhile."""
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        if self._fault:
            raise self._fault

    def _wake(self) -> None:
        self._changed.set()

    def _fail(self, fault: ServeError) -> ServeError:
        self._fault = self._fault or fault
        self._changed.set()
        return fault

    def _lost(self, rank: RankProcess) -> None:
        """A rank is gone: unless that was asked for, it ends everything."""
        if self._stop.is_set() or self._fault:
            self.table.fail_all(f"rank {rank.rank} ended while the server was stopping")
            self._changed.set()
        else:
            self._fail(loss_of(rank))
