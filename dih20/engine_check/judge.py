"""Compare the dumps of stage e with the reference: a process of its own, without a GPU."""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dih20.engine_check.context import Outcome
from dih20.engine_check.covering import not_covered, not_recorded, wanted_records
from dih20.engine_check.dumping import MAP, keep_comparable
from dih20.engine_check.own_errors import weigh
from dih20.engine_check.reference import ReferenceValues
from dih20.engine_check.results import read_json, write_json
from dih20.engine_check.stage_parity import READY, dump_folder
from dih20.parity.dump import DumpReader
from dih20.parity.model import Comparison
from dih20.parity.site_map import load_map
from v41.config import ModelConfig

JUDGED = "judged.json"


def judge(work: Path, checkpoint: Path, values: ReferenceValues) -> Outcome:
    """Compare each case; write numbers and reasons to the work folder as well."""
    from dih20.errors import DumpUnusable
    from dih20.parity.checkpoints import load_oracle

    oracle = load_oracle(checkpoint, "sm90")
    ready = read_json(work / READY) or {}
    misfits = dict(ready.get("map_faults", {}))
    cases: dict[str, Any] = {}
    reasons: list[str] = []
    comparisons: list[Comparison] = []
    for number, (name, prompt, golden) in enumerate(values.dumped):
        folder = dump_folder(work, number)
        try:
            shapes, comparison = _compared(folder, oracle, (*prompt, *golden[:-1]), len(prompt))
            rounded, wrong = weigh(comparison, _shapes(folder))
        except DumpUnusable as unusable:
            cases[name] = {"unusable": unusable.found}
            reasons.append(f"{name}: {unusable.found}")
            continue
        misfits |= shapes
        comparisons.append(comparison)
        cases[name] = {**_numbers(comparison), "rounded": rounded}
        reasons += [f"{name}: {line}" for line in wrong]
    if misfits:
        label, why = next(iter(misfits.items()))
        reasons.append(f"{len(misfits)} entries of the map do not fit, the first {label}: {why}")
    left_out = _left_out(comparisons, oracle.config)
    reasons += [
        f"{what.replace('_', ' ')} in any case: {_some(names)}"
        for what, names in left_out.items()
        if names
    ]
    numbers = {**ready, "map_faults": misfits, **left_out, "cases": cases}
    outcome = Outcome(numbers=numbers, reasons=tuple(reasons))
    write_json(work / JUDGED, {"numbers": numbers, "reasons": reasons})
    return outcome


def _left_out(comparisons: Sequence[Comparison], config: ModelConfig) -> dict[str, list[str]]:
    findings = [finding for each in comparisons for finding in each.findings]
    return {
        "not_recorded": not_recorded(wanted_records(load_map(MAP), config), findings),
        "not_covered": not_covered([each.coverage for each in comparisons]),
    }


def _shapes(folder: Path) -> dict[tuple[int, str], tuple[int, ...]]:
    dump = DumpReader(folder)
    return {key: dump.shape(*key) for key in dump.keys}


def _compared(
    folder: Path, oracle: Any, tokens: tuple[int, ...], rows: int
) -> tuple[dict[str, str], Any]:
    import torch

    from dih20.parity.capture import dump_reference, reference_facts
    from dih20.parity.compare import compare_dumps
    from v41.model import Reference

    trusted = folder.with_name(folder.name + "-reference")
    shutil.rmtree(trusted, ignore_errors=True)
    facts = reference_facts(
        oracle.config, mode="sm90", weights=oracle.weights_hash, data_class="canary"
    )
    steps = [rows, *[1] * (len(tokens) - rows)]
    dump_reference(
        trusted,
        lambda tap: Reference(
            oracle.config,
            oracle.weights,
            numerics=oracle.numerics,
            compressed_ids=oracle.compressed_ids,
            tap=tap,
        ),
        torch.tensor([tokens]),
        steps,
        facts,
    )
    shapes = keep_comparable(trusted, folder)
    return shapes, compare_dumps(trusted, folder, oracle=oracle, full=True, as_values=True)


def _numbers(comparison: Any) -> dict[str, Any]:
    """Give the verdict, and per kind of site the worst error of its own and against the reference."""
    sites: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"tensors": 0, "against_reference": 0.0, "own_error": 0.0, "over": 0}
    )
    for finding in comparison.findings:
        leaf = ".".join(finding.site.split(".")[2:]) or finding.site
        row = sites[f"{leaf} {finding.phase}"]
        row["tensors"] += 1
        row["limit"] = finding.measure.limit
        row["against_reference"] = _worse(row["against_reference"], finding.measure.value)
        if finding.fresh is not None:
            row["own_error"] = _worse(row["own_error"], finding.fresh.value)
            row["over"] += finding.fresh.exceeds
    return {
        "verdict": comparison.verdict.outcome,
        "line": comparison.verdict.line,
        "looks_like": [cause.title for cause in comparison.verdict.looks_like],
        "tensors": len(comparison.findings),
        "covered": list(comparison.coverage.covered),
        "not_covered": list(comparison.coverage.missing),
        "not_compared": list(comparison.coverage.not_compared),
        "sites": dict(sites),
    }


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _worse(a: float, b: float) -> float:
    return b if math.isnan(b) else max(a, b)
