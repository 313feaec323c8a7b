"""The one mode that a command line of `inv patch` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dih20.cli import Run
from dih20.patches import in_place, report


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The flags of one `inv patch`."""

    check: bool = False
    status: bool = False
    diff: bool = False
    diagnose: bool = False
    in_place: bool = False
    undo: bool = False
    tree: str = ""
    test_only: bool = False
    source: str = "deepinfer"


def answer(run: Run, asked: Asked) -> dict[str, Any]:
    """Do what was asked for; two things at once are refused."""
    modes = dict(vars(asked))
    source, tree, test_only = modes.pop("source"), modes.pop("tree"), modes.pop("test_only")
    report.require_one_mode(tree=tree, test_only=test_only, plan=run.plan, **modes)
    ui = run.ui
    if asked.check:
        return report.check(ui, source, tree, test_only=test_only)
    if asked.status:
        return report.status(ui, source)
    if asked.diff:
        return report.diff(ui, source, tree, test_only=test_only)
    if asked.diagnose:
        from dih20.patches.diagnose.command import diagnose

        found: dict[str, Any] = diagnose(ui, tree)
        return found
    if asked.undo:
        return in_place.undo_in_place(ui, tree, only_plan=run.plan)
    if asked.in_place:
        return in_place.lay_in_place(ui, tree, test_only=test_only, only_plan=run.plan)
    if run.plan:
        return report.plan(ui, source, test_only=test_only)
    return report.apply(ui, source, test_only=test_only)
