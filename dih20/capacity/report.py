"""What `inv capacity` shows: weights by kind, and what fits on each card."""

from __future__ import annotations

from typing import Any

from dih20.capacity.engine_defaults import derive
from dih20.capacity.engram import table_bytes
from dih20.capacity.memory import CARDS, GIB, SEEN_GIB, Card, Memory, memory_of
from dih20.capacity.model_shape import V41_FLASH, ModelShape
from dih20.capacity.rules import problems_of, require_startable
from dih20.config import EngineConfig, load_engine
from dih20.console import Console
from dih20.errors import UsageError


def capacity(ui: Console, *, card: str) -> dict[str, Any]:
    """Print memory per GPU and cache tokens; refuse settings that the engine would refuse."""
    engine = load_engine()
    cards = _cards(card)
    memories = {each.name: memory_of(engine, V41_FLASH, each) for each in cards}
    first = next(iter(memories.values()))
    rows = [[kind, _gib(size)] for kind, size in first.weights.items() if size]
    rows.append(["in all, from shapes", _gib(first.weight_bytes)])
    ui.table(
        ["weights on each GPU", "GiB"],
        rows,
        title=f"{V41_FLASH.name}, EP {engine.expert_parallel_size}",
    )
    ui.line(f"seen on eight H20 after loading, Engram tables elsewhere: {SEEN_GIB} GiB")
    derived = derive(engine)
    if not derived.engram_on_gpu:
        tables, ranks = table_bytes(engine, V41_FLASH), engine.expert_parallel_size
        ui.line(
            f"Engram tables are in host memory: {_gib(tables)} GiB a rank, {_gib(tables * ranks)} in all, "
            "twice that while they are loaded"
        )
    ui.table(
        ["card", "budget", "weights and rest", "working*", "states", "cache tokens", "enough"],
        [_row(name, memory) for name, memory in memories.items()],
    )
    ui.line("GiB; * an estimate of one prefill batch: the engine measures it in its profile run")
    for each in cards:
        if not memories[each.name].fits and (batch := largest_batch(engine, V41_FLASH, each)):
            ui.line(
                f"on {each.name}: chunked_prefill: true with max_num_batched_tokens: {batch} would fit"
            )
    for problem in problems_of(engine):
        if problem.level == "note":
            ui.warn(f"{problem.key}: {problem.found} (better: {problem.expected})")
    require_startable(engine)
    return {
        "runtime_max_model_len": derived.runtime_max_model_len,
        "seen_gib": SEEN_GIB,
        "cards": {name: _as_dict(memory) for name, memory in memories.items()},
        "problems": [vars(problem) for problem in problems_of(engine)],
    }


def largest_batch(engine: EngineConfig, model: ModelShape, card: Card) -> int:
    """Give the most tokens of a prefill batch, in powers of two, with which the rest fits; 0 if none."""
    least = engine.max_num_seqs * (1 + derive(engine).drafts)
    for exponent in range(20, 8, -1):
        batch = 1 << exponent
        change = {"max_num_batched_tokens": batch, "chunked_prefill": True}
        if batch >= least and memory_of(engine.model_copy(update=change), model, card).fits:
            return batch
    return 0


def _cards(named: str) -> list[Card]:
    if not named:
        return list(CARDS.values())
    if named in CARDS:
        return [CARDS[named]]
    try:
        return [Card(name=f"{named} GiB", total_gib=float(named.removesuffix("GiB")))]
    except ValueError:
        raise UsageError(
            found=f"--card {named}",
            expected=f"{' or '.join(CARDS)} (GB), or what CUDA reports as total, like 139.8GiB",
            remedy="correct it; `nvidia-smi --query-gpu=memory.total --format=csv` tells",
        ) from None


def _row(name: str, memory: Memory) -> list[str]:
    return [
        name,
        _gib(memory.budget),
        _gib(memory.weight_bytes + memory.not_explained),
        _gib(memory.working),
        _gib(memory.states),
        f"{memory.cache_tokens:,}",
        "yes" if memory.fits else f"no, {memory.least_tokens:,} are needed",
    ]


def _as_dict(memory: Memory) -> dict[str, Any]:
    return {**vars(memory), "fits": memory.fits}


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
