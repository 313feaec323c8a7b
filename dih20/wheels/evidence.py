"""Write down what a build of the wheels gave, so that it can be read without building."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.paths import shown
from dih20.wheels.image_facts import ImageFacts
from dih20.wheels.rows import Row

_REPEAT = (
    "./inv fetch --base stand-in",
    "./inv fetch --base stand-in --only torch",
    "./inv build-image --base stand-in",
    "./inv build-vendor --torch --evidence docs/evidence/vendor-wheels.json",
)


def write_evidence(ui: Console, path: Path, facts: ImageFacts, rows: Sequence[Row]) -> None:
    """Write a JSON file with a label that says what these wheels are good for."""
    entries = [_entry(row) for row in rows]
    text = json.dumps(
        {
            "what": "wheels as ./inv build-vendor left them",
            "label": label_of(facts),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "image": {
                "python": facts.python_tag,
                "torch": facts.torch,
                "gcc": facts.gcc,
                "glibc": facts.glibc,
            },
            "machine": {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)},
            "repeat": list(_REPEAT),
            "wheels": entries,
        },
        indent=1,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    ui.line(f"  evidence in {shown(path.resolve())}")


def label_of(facts: ImageFacts) -> str:
    """Say on which base the wheels were built, and what they may not be used for."""
    base = facts.labels.get("dih20.base", "unknown")
    if base == "stand-in":
        return f"stand-in {facts.python_tag}, not installable on the vLLM base"
    return f"{base} {facts.python_tag}"


def _entry(row: Row) -> dict[str, Any]:
    wheel = row.wheel
    if wheel is None:
        return {"name": row.recipe.name, "status": row.status, "note": row.note}
    return {
        "name": wheel.name,
        "status": row.status,
        "file": wheel.path.name,
        "version": wheel.version,
        "sha256": wheel.sha256,
        "size_bytes": wheel.size_bytes,
        "identity": wheel.identity,
        "parts": wheel.parts,
        "build": {key: value for key, value in wheel.build.items() if key != "image"},
        "verdicts": list(wheel.verdicts),
    }
