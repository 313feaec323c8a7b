"""Stage e: dump every site, prefill and decode. The comparison runs beside the next stages, on the CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dih20.engine_check.context import Context, Outcome
from dih20.engine_check.driver import Driver
from dih20.engine_check.dumping import dump_case, engine_facts
from dih20.engine_check.results import write_json
from dih20.parity.checkpoints import weights_hash
from v41.checkpoint import CheckpointReader

READY = "dumped.json"


def dump_folder(work: Path, number: int) -> Path:
    return work / f"dump-{number}"


def dump_every_site(driver: Driver, context: Context) -> Outcome:
    reader = CheckpointReader(context.checkpoint)
    facts = engine_facts(reader.config, weights_hash(reader))
    misfits: dict[str, str] = {}
    seconds = []
    for number, (name, prompt, golden) in enumerate(context.values.dumped):
        context.begin(f"dump of {name}")
        started = time.monotonic()
        folder = dump_folder(context.work, number)
        misfits |= dump_case(driver, folder, facts, prompt, golden)
        seconds.append(round(time.monotonic() - started, 2))
    numbers: dict[str, Any] = {"map_faults": misfits, "dump_seconds": seconds}
    write_json(context.work / READY, {**numbers, "sources": context.sources})
    return Outcome(numbers=numbers, pending=True)
