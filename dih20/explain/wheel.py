"""What a wheel file says of itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.explain.here import CacheAnswer, compare_with_here
from dih20.provenance.record import Record, read_record


def explain_wheel(ui: Console, path: Path) -> dict[str, Any]:
    """Print where a wheel came from; its file alone is enough."""
    record = read_record(path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    answer = compare_with_here(record)
    ui.line(f"wheel {path.name}   sha256 {sha256[:12]}")
    show_record(ui, record, answer)
    return {
        "kind": "wheel",
        "file": path.name,
        "sha256": sha256,
        "record": record.model_dump(mode="json"),
        "cache": answer.as_dict(),
    }


def show_record(ui: Console, record: Record, answer: CacheAnswer) -> None:
    """Print a record, a line for each thing that a person asks about first."""
    source, parts = record.source, record.parts
    roles = Counter(entry.role for entry in record.inputs)
    rows = {
        "recipe": f"{record.name} (distribution {record.recipe['distribution']}), {parts['recipe'][:12]}",
        "source": f"{source.kind} {source.name} {source.version}, {source.hash[:12]}",
        "patchset": parts["patchset"] if parts["patchset"] == "none" else parts["patchset"][:12],
        "toolchain": parts["toolchain"],
        "torch": parts["torch"],
        "python": parts["python_tag"],
        "inputs": ", ".join(f"{count} {role}" for role, count in sorted(roles.items())) or "none",
        "environment": f"{len(record.environment)} variables, and no other",
        "identity": record.identity,
    }
    for name, text in rows.items():
        ui.line(f"  {name:<12} {text}")
    for edit in record.edits:
        ui.line(f"  {'edit':<12} {edit.id}, {edit.sha256[:12]}, {len(edit.text.splitlines())} lines (--json has its text)")  # fmt: skip
    for line in answer.lines:
        ui.line(f"  {'cache':<12} {line}")
