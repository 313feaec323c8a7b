"""What a verb of `inv parity` is about to write, before torch is installed or anything is read."""

from __future__ import annotations

from pathlib import Path

from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan


def outcome_folder(b: str, out: str) -> Path:
    """Give where findings about a dump go."""
    return Path(out) if out else build_dir() / "parity" / Path(b).name


def plan_verb(verb: str, a: str, b: str, out: str) -> Plan:
    """Give the files that a verb writes; replay and layout write none."""
    actions = [Action(verb="read", target=path, needed=None) for path in (a, b)]
    if verb == "dump":
        actions = [actions[0], Action(verb="write", target=f"a dump to {b}")]
    elif verb in ("compare", "report"):
        folder = shown(outcome_folder(b, out))
        files = "findings.jsonl, verdict.json and repro/"
        files += ", report.html" if verb == "report" else ""
        actions.append(Action(verb="write", target=f"{files} to {folder}"))
    return Plan(title=f"parity {verb}", actions=tuple(actions))
