"""What two dumps exercised: layer kinds, phases, and the cases that short prompts do not reach."""

from __future__ import annotations

from collections.abc import Iterable

from dih20.parity.dump import DumpReader, Key
from dih20.parity.model import Coverage
from v41.config import ModelConfig

_BOUNDARIES = ("attn.output", "ffn.output")  # a layer is compared when both of these are


def coverage(a: DumpReader, b: DumpReader) -> Coverage:
    """Say what was compared, and name everything that was not."""
    both = {key for key in a.keys if key in b}
    covered: list[str] = []
    missing: list[str] = []
    for kind in dict.fromkeys(layer.name for layer in a.config.layers):
        for phase in ("prefill", "decode"):
            found = any(_compared(a, both, index, phase) for index in _layers_of(kind, a.config))
            (covered if found else missing).append(f"{kind} in {phase}")
    for case, found in _cases(a, both):
        (covered if found else missing).append(case)
    only_one = {site for _, site in set(a.keys) ^ set(b.keys)}
    return Coverage(
        data_class=b.facts.data_class,
        covered=tuple(covered),
        missing=tuple(missing),
        not_compared=tuple(sorted(only_one)),
    )


def _layers_of(kind: str, config: ModelConfig) -> Iterable[int]:
    return [index for index, layer in enumerate(config.layers) if layer.name == kind]


def _compared(a: DumpReader, both: set[Key], layer: int, phase: str) -> bool:
    steps = {
        step
        for step, site in both
        if site == f"layers.{layer}.attn.output" and a.record(step, site).phase == phase
    }
    return any(all((s, f"layers.{layer}.{leaf}") in both for leaf in _BOUNDARIES) for s in steps)


def _cases(a: DumpReader, both: set[Key]) -> Iterable[tuple[str, bool]]:
    """Lengths decide these: a prompt that fits in the window or in the top-k proves nothing of them."""
    config = a.config
    length = max((last for row in a.facts.positions for last in row), default=-1) + 1
    # an engine makes logits outside its modules; they are one linear of this
    yield "the end of the model", any(site in ("final_norm", "logits") for _, site in both)
    yield "window exceeded", length > config.sliding_window
    sparse = [layer for layer in config.layers if layer.owns_index]
    if sparse:
        entries = length // max(layer.ratio for layer in sparse)
        yield "selection beyond top-k", entries > config.index_topk and _has(both, "attn.chosen")
    if any(layer.candidates == "consumer" for layer in config.layers):
        held = config.candidate_topk_blocks * config.candidate_block_size
        yield "candidate blocks dropped", length > held
    if any(layer.ratio == 2 for layer in config.layers):
        odd = any(len(row) == 1 and row[0] % 2 for row in a.facts.positions)
        yield "a ratio-2 group completed in decode", odd


def _has(both: set[Key], leaf: str) -> bool:
    return any(site.endswith(leaf) for _, site in both)
