"""Doctor: would the engine start with its settings."""

from __future__ import annotations

from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check


@check("engine settings", where="local")
def engine_settings(subject: Subject) -> Iterator[Finding]:
    from dih20.capacity.memory import CARDS, memory_of
    from dih20.capacity.model_shape import V41_FLASH
    from dih20.capacity.rules import problems_of
    from dih20.config import load_engine

    engine = load_engine()
    refused = [problem for problem in problems_of(engine) if problem.level == "refused"]
    for problem in refused:
        yield Finding.fail(
            f"configs/engine.yaml: {problem.key}: {problem.found}",
            expected=problem.expected,
            remedy="correct the file, then look at `./inv capacity`",
        )
    if not refused:
        tokens = {
            card.name: memory_of(engine, V41_FLASH, card).cache_tokens for card in CARDS.values()
        }
        listed = ", ".join(f"{count:,} on {name}" for name, count in tokens.items())
        yield Finding.ok(f"the engine takes them; cache tokens: {listed} (`./inv capacity`)")
