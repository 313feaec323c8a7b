"""Dump one case of an engine at every site, and leave out of a dump what cannot be compared."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dih20.engine_check.driver import Ask, Driver
from dih20.engine_check.engine_sites import computed_sites
from dih20.engine_check.tolerant_capture import TolerantCapture
from dih20.parity.dump import DumpReader, DumpWriter
from dih20.parity.dump_index import read_index, write_index
from dih20.parity.model import RunFacts
from dih20.parity.site_map import load_map
from dih20.parity.sites import site_of
from v41.config import ModelConfig

MAP = "deepinfer"


def engine_facts(config: ModelConfig, weights: str, engine: str = "deepinfer") -> RunFacts:
    """Give the facts of an engine's run; it computes as mode sm90 does."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return RunFacts(
        engine=engine,
        mode="sm90",
        device=device,
        torch=torch.__version__,
        data_class="canary",
        config=asdict(config),
        weights=weights,
        tokens=(),
        positions=(),
    )


def dump_case(
    driver: Driver,
    folder: Path,
    facts: RunFacts,
    prompt: tuple[int, ...],
    golden: tuple[int, ...],
    *,
    statistics_only: bool = False,
) -> dict[str, str]:
    """Run one sequence, prefill and decode, and dump it; give the rules that did not fit."""
    shutil.rmtree(folder, ignore_errors=True)
    config = ModelConfig.from_hf(dict(facts.config))
    writer = DumpWriter(folder, facts, statistics_only=statistics_only)
    with writer:
        capture = TolerantCapture(
            driver.model,
            load_map(MAP),
            writer,
            skip=driver.skip_step,
            computed=computed_sites(config),
        )
        with capture:
            reply = driver.generate([Ask(prompt=prompt, max_tokens=len(golden), golden=golden)])[0]
    if reply.fault:
        capture.faults["the request"] = reply.fault
    return capture.faults


def keep_comparable(a: Path, b: Path) -> dict[str, str]:
    """Take records out of B's index that A has in another shape; give site -> why."""
    dump_a, dump_b = DumpReader(a), DumpReader(b)
    facts, records = read_index(next(b.glob("index.rank-0.json")))
    misfits: dict[str, str] = {}
    kept = []
    for record in records:
        key = (record.step, record.site)
        is_selection = site_of(record.site, dump_a.config).kind == "selection"
        if key in dump_a and not is_selection and dump_a.shape(*key) != dump_b.shape(*key):
            why = f"{dump_b.shape(*key)} in the engine, {dump_a.shape(*key)} in the reference"
            misfits.setdefault(record.site, why)
        else:
            kept.append(record)
    write_index(b, 0, facts, kept)
    return misfits


def first_difference(healthy: Path, other: Path, *, least: float = 1e-9) -> dict[str, Any] | None:
    """Give the first tensor, in causal order, in which two runs of one engine differ; None if none."""
    from dih20.parity.statistics import estimate_difference

    a, b = DumpReader(healthy), DumpReader(other)
    for step, site in a.keys:
        if (step, site) not in b:
            continue
        (of_a, sketch_a), (of_b, sketch_b) = (d.describe(step, site) for d in (a, b))
        if of_a.digest == of_b.digest:
            continue
        strange = of_b.nan + of_b.inf
        difference = estimate_difference(sketch_a, sketch_b)
        if strange or difference > least:
            return {
                "site": site,
                "step": step,
                "phase": a.record(step, site).phase,
                "difference": difference,
                "not_finite": strange,
                "rms": of_b.rms,
                "rms_healthy": of_a.rms,
            }
    return None
