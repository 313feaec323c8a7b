"""One rank: start the engine, then step while there is work.

python -m dih20.serve.engines.process FD      FD: the socket to the gateway
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from dih20.errors import ConfigError, ToolError
from dih20.serve.engines.interface import Agreed, Engine, EngineContext, Factory, Phase
from dih20.serve.engines.wire import Channel, emissions_to_wire, request_from_wire
from dih20.serve.settings import Settings

_BUILT_IN = {
    "reference": "dih20.serve.engines.reference:make_engine",
    "deepinfer": "dih20.serve.engines.deepinfer:make_engine",
}
_HEARTBEAT_NS, _MEASURE_EVERY_NS = 250_000_000, 1_000_000_000
FAILED = 1


def find_factory(name: str) -> Factory:
    """Give the factory of a built-in engine or of module:factory."""
    module, colon, attribute = _BUILT_IN.get(name, name).partition(":")
    if not colon:
        raise _no_such_engine(name, "no such engine")
    try:
        factory: Factory = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as fault:
        if not fault.name or not f"{module}.".startswith(f"{fault.name}."):
            raise  # the module is there, and lacks something itself
        raise _no_such_engine(name, str(fault)) from fault
    except AttributeError as fault:
        raise _no_such_engine(name, str(fault)) from fault
    return factory


def _no_such_engine(name: str, why: str) -> ConfigError:
    return ConfigError(
        found=f"engine {name!r}: {why}",
        expected=f"one of {', '.join(sorted(_BUILT_IN))}, or module:factory of a module that is here",
        remedy="correct the name in the settings",
    )


class Rank:
    """The loop of one rank."""

    def __init__(self, channel: Channel, engine: Engine) -> None:
        self._channel, self._engine = channel, engine
        self._wakes, self._closing = 0, False
        self._steps, self._reported_ns, self._measured_ns = 0, 0, 0
        self._memory: tuple[int, int] | None = None

    def start(self) -> None:
        def report(phase: Phase, line: str, fraction: float | None = None) -> None:
            self._channel.send({"t": "phase", "phase": phase, "line": line, "fraction": fraction})

        info = self._engine.start(report)
        self._lockstep = self._engine.lockstep()
        self._channel.send({"t": "ready", "info": dataclasses.asdict(info)})

    def run(self) -> None:
        """Step in turn with the other ranks until the gateway closes or is gone."""
        agreed = Agreed(work=False, wakes=0)
        while True:
            awake = agreed.work or self._engine.has_work() or self._wakes > agreed.wakes
            if self._closing and not awake:
                return
            self._take(self._channel.receive(wait=not awake))
            if self._channel.closed:
                return
            if not awake and not self._engine.has_work() and self._wakes <= agreed.wakes:
                continue
            agreed = self._lockstep.agree(self._engine.has_work(), self._wakes)
            if agreed.work:
                self._step()

    def _take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self._wakes = message.get("wakes", self._wakes)
            kind = message["t"]
            if kind == "add":
                for values in message["r"]:
                    self._engine.add(request_from_wire(values))
            elif kind == "cancel":
                for id in message["ids"]:
                    self._engine.cancel(id)
            elif kind == "drain":
                self._engine.drain()
            elif kind == "close":
                self._closing = True

    def _step(self) -> None:
        began = time.monotonic_ns()
        emissions = self._engine.step()
        now = time.monotonic_ns()
        self._steps += 1
        if not emissions and now - self._reported_ns < _HEARTBEAT_NS:
            return
        self._reported_ns = now
        self._channel.send(
            {
                "t": "step",
                "n": self._steps,
                "ns": now - began,
                "mem": self._memory,
                **emissions_to_wire(emissions),
            }
        )
        if now - self._measured_ns > _MEASURE_EVERY_NS:  # after sending: clients wait for that
            self._memory, self._measured_ns = self._engine.memory(), now


def main(arguments: list[str]) -> int:
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    channel.send({"t": "hello", "pid": os.getpid()})
    first: list[dict[str, Any]] = []
    while not first and not channel.closed:
        first = channel.receive(wait=True)
    if channel.closed:
        return FAILED
    try:
        serve(channel, first)
    except ToolError as fault:
        print(fault, file=sys.stderr, flush=True)
        return _fatal(channel, fault.found)
    except Exception as fault:  # noqa: BLE001 - whatever an engine raises ends this rank, told
        traceback.print_exc()
        sys.stderr.flush()
        return _fatal(channel, f"{type(fault).__name__}: {fault}")
    return 0


def serve(channel: Channel, first: list[dict[str, Any]]) -> None:
    start = first[0]
    context = EngineContext(
        settings=Settings.model_validate(start["settings"]),
        rank=start["rank"],
        ranks=start["ranks"],
        rendezvous=Path(start["rendezvous"]),
    )
    engine = find_factory(context.settings.engine)(context)
    rank = Rank(channel, engine)
    rank.start()
    rank.run()
    engine.close()


def _fatal(channel: Channel, message: str) -> int:
    try:
        channel.send({"t": "fatal", "message": message[:4000]})
    except OSError:
        print("the gateway is gone", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
