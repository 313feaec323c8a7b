"""Start a reference engine here, ask it, and step until it has answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dih20.serve.engines.interface import Emission, EngineContext, EngineInfo, EngineRequest
from dih20.serve.engines.reference import ReferenceEngine, make_engine
from dih20.serve.settings import Settings


def context(folder: Path, **settings: Any) -> EngineContext:
    return EngineContext(
        settings=Settings.model_validate(settings), rank=0, ranks=1, rendezvous=folder
    )


def started(folder: Path, **settings: Any) -> tuple[ReferenceEngine, EngineInfo]:
    engine = make_engine(context(folder, **settings))
    return engine, engine.start(lambda phase, line, fraction=None: None)


def greedy(id: int, prompt: list[int], **others: Any) -> EngineRequest:
    values: dict[str, Any] = {"max_tokens": 10, "temperature": 0.0, "logprobs": 0} | others
    return EngineRequest(id=id, prompt=prompt, **values)


def run(engine: ReferenceEngine, steps: int = 10_000) -> dict[int, list[Emission]]:
    """Step until nothing is left to do, or so often; give the emissions of each request."""
    heard: dict[int, list[Emission]] = {}
    while engine.has_work() and steps:
        steps -= 1
        for emission in engine.step():
            heard.setdefault(emission.id, []).append(emission)
    return heard


def said(emissions: list[Emission]) -> list[int]:
    return [token for emission in emissions for token in emission.tokens]


def log_probs(emissions: list[Emission]) -> list[float]:
    return [value for emission in emissions for value in emission.logprobs]
