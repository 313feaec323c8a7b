"""Dump a run of the reference model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from dih20.parity.dump import DumpReader, DumpWriter
from dih20.parity.model import DataClass, Phase, RunFacts
from v41.config import ModelConfig
from v41.model import Reference
from v41.tap import Tap


def reference_facts(
    config: ModelConfig, *, mode: str, weights: str, data_class: DataClass, device: str = "cpu"
) -> RunFacts:
    """Give the facts of a run of the reference; tokens and positions come with the steps.

    weights: the checkpoint's hash, `weights_hash(folder)`, or a name for weights made in a test.
    """
    return RunFacts(
        engine="reference",
        mode=mode,
        device=device,
        torch=torch.__version__,
        data_class=data_class,
        config=asdict(config),
        weights=weights,
        tokens=(),
        positions=(),
    )


def phase_of(step: int, rows: int) -> Phase:
    """Name the phase of a pass: one row after others is decode, everything else prefill."""
    return "decode" if step > 0 and rows == 1 else "prefill"


def dump_reference(
    folder: Path,
    make_model: Callable[[Tap], Reference],
    tokens: torch.Tensor,
    rows: Sequence[int],
    facts: RunFacts,
    *,
    statistics_only: bool = False,
) -> DumpReader:
    """Run the model over given tokens in steps and dump every site.

        dump_reference(folder, lambda tap: Reference(config, weights, ..., tap=tap),
                       tokens, [40, 1, 1, 1], facts)

    Args:
        make_model: builds the model around the tap it is given.
        tokens: int64, (sequences, n).
        rows: how many tokens each step takes; their sum is at most n.
    """
    assert sum(rows) <= tokens.shape[1], f"steps of {list(rows)} rows over {tokens.shape[1]} tokens"
    with DumpWriter(folder, facts, statistics_only=statistics_only) as dump, torch.no_grad():

        def tap(site: str, tensor: torch.Tensor) -> torch.Tensor:
            dump.add(site, tensor)
            return tensor

        model = make_model(tap)
        cache, start = model.new_cache(), 0
        for step, count in enumerate(rows):
            part = tokens[:, start : start + count]
            positions = list(range(start, start + count))
            dump.begin_step(phase_of(step, count), part.tolist(), positions)
            model.extend(part, cache)
            start += count
    return DumpReader(folder)
