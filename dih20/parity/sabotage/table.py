"""Write the suite's outcome as JSON evidence and as the table in docs/."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dih20.parity.sabotage.base import GATE_LIMIT, Base
from dih20.parity.sabotage.suite import Outcome, Row

_INTRODUCTION = """# Sabotage suite: does the parity tool name what was broken?

Each fault is put into the reference where it would happen - in the checkpoint's bytes, in a piece
of the model, in the reader of the paged cache, or, for faults without a signature, in a tensor
between two sites - and the broken run is dumped and compared with a healthy one. The tool must name
the site and phase of every fault first, and nothing in runs without a fault. This page and
`docs/evidence/sabotage.json` are written by `./inv sabotage`; layers, phases and magnitudes are
drawn from the seed. A fault that changes no bit of its site where it was drawn first - a limit that no
value reaches, a sink beside far larger logits - is drawn again, and the table says so.
"""


def as_evidence(outcome: Outcome, base: Base, *, seed: int) -> dict[str, Any]:
    """Give the outcome as plain values."""
    config = base.oracle.config
    return {
        "data_class": base.data_class,
        "mode": base.oracle.mode,
        "weights": base.oracle.weights_hash,
        "layers": [kind.name for kind in config.layers],
        "gate_limit_of_gate_faults": GATE_LIMIT,
        "rows_per_step": list(base.rows),
        "seed": seed,
        "fault_free_runs_accused": list(outcome.accused_without_fault),
        "totals": totals(outcome),
        "faults": [_plain(row) for row in outcome.rows],
    }


def totals(outcome: Outcome) -> dict[str, int]:
    """Count what was right."""
    return {
        "faults": len(outcome.rows),
        "sites_right": sum(row.site_right for row in outcome.rows),
        "with_signature": sum(row.cause != "no known signature" for row in outcome.rows),
        "known_causes_right": outcome.known_causes_right,
        "causes_right": sum(row.cause_right for row in outcome.rows),
    }


def _plain(row: Row) -> dict[str, Any]:
    plain = asdict(row) | {"site_right": row.site_right, "cause_right": row.cause_right}
    plain |= {"also_named": list(row.also_named), "idle_draws": list(row.idle_draws)}
    plain["error"] = float(f"{row.error:.4g}") if math.isfinite(row.error) else "not a number"
    return plain


def write_evidence(evidence: dict[str, Any], json_path: Path, page: Path) -> None:
    """Write both files."""
    json_path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(evidence, indent=1, ensure_ascii=False) + "\n"
    json_path.write_text(text, encoding="utf-8")
    page.write_text(as_page(evidence), encoding="utf-8")


def summary(evidence: dict[str, Any]) -> str:
    """Give the totals in one line."""
    counts, accused = evidence["totals"], evidence["fault_free_runs_accused"]
    return (
        f"Sites and phases right: {counts['sites_right']} of {counts['faults']}. "
        f"Causes right: {counts['known_causes_right']} of {counts['with_signature']} with a "
        f"signature, {counts['causes_right']} of all. Tensors accused in {len(accused)} runs "
        f"without a fault: {sum(accused)}."
    )


def as_page(evidence: dict[str, Any]) -> str:
    """Give the page with the table."""
    lines = [
        _INTRODUCTION,
        (
            f"Data: {evidence['data_class']}, mode {evidence['mode']}, steps of "
            f"{evidence['rows_per_step']} tokens, "
            f"seed {evidence['seed']}; faults of the gate under a SwiGLU limit of "
            f"{evidence['gate_limit_of_gate_faults']}, which small models reach."
        ),
        "",
        summary(evidence),
        "",
        "| fault | injected at | phase | named | cause named | right |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_line(row) for row in evidence["faults"])]) + "\n"


def _line(row: dict[str, Any]) -> str:
    named = f"{row['site_named']}, {row['phase_named']}" if row["site_named"] else "nothing"
    if row["site_right"]:
        named = "the same"
    causes = row["cause_named"]
    if row["also_named"]:
        causes += f" (also {', '.join(row['also_named'])})"
    where = f"{row['fault']}: {row['detail']}"
    if row["idle_draws"]:
        where += f" (drawn first without effect: {', '.join(row['idle_draws'])})"
    right = ("yes" if row["cause_right"] else "site only") if row["site_right"] else "NO"
    return f"| {where} | {row['site']} | {row['phase']} | {named} | {causes} | {right} |"
