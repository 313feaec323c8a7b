"""The one mode that a command line of `inv patch` asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dih20.cli import Run
from dih20.patches import in_place, report


@dataclass(frozen=True, kw_only=True)
class Modes:
    """The flags of one `inv patch`, of which at most one is set."""

    check: bool = False
    status: bool = False
    diff: bool = False
    diagnose: bool = False
    in_place: bool = False
    undo: bool = False

    def also(self, *, diagnose: bool, in_place: bool, undo: bool) -> Modes:
        """Give the same with the modes that need a tree."""
        return replace(self, diagnose=diagnose, in_place=in_place, undo=undo)


def answer(run: Run, modes: Modes, *, tree: str, test_only: bool, source: str) -> dict[str, Any]:
    """Do what was asked for; two things at once are refused."""
    report.require_one_mode(tree=tree, test_only=test_only, plan=run.plan, **vars(modes))
    ui = run.ui
    if modes.check:
        return report.check(ui, source, tree, test_only=test_only)
    if modes.status:
        return report.status(ui, source)
    if modes.diff:
        return report.diff(ui, source, tree, test_only=test_only)
    if modes.diagnose:
        from dih20.patches.diagnose.command import diagnose

        return diagnose(ui, tree)
    if modes.undo:
        return in_place.undo_in_place(ui, tree, only_plan=run.plan)
    if modes.in_place:
        return in_place.lay_in_place(ui, tree, test_only=test_only, only_plan=run.plan)
    if run.plan:
        return report.plan(ui, source, test_only=test_only)
    return report.apply(ui, source, test_only=test_only)
