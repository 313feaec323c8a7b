"""Lay the series' edits into a tree of the user's, and take them out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.errors import PatchError, UsageError
from dih20.patches.applying import apply_all
from dih20.patches.series import ENGINE, load
from dih20.patches.tree import Tree
from dih20.plan import Action, Plan


def user_tree(tree: str) -> Path:
    """Give the folder that --tree names."""
    root = Path(tree).expanduser()
    if not root.is_dir():
        raise UsageError(
            found=f"--tree {tree} is not a folder",
            expected="the top folder of an unpacked upstream tree or of a checkout",
            remedy="correct the path",
        )
    return root


def lay_in_place(ui: Console, tree: str, *, test_only: bool, only_plan: bool) -> dict[str, Any]:
    """Write the edits into a tree: all of them, or none with what to do about each."""
    given = Tree(user_tree(tree))
    edits = [patch for patch in load(ENGINE, test_only=test_only) if patch.folder]
    outcomes = apply_all(given, edits)
    from dih20.patches.report import require_all, show_parts

    show_parts(ui, outcomes)
    require_all(outcomes)
    return _written(ui, given, f"edits of {len(edits)} folders into {tree}", only_plan)


def undo_in_place(ui: Console, tree: str, *, only_plan: bool) -> dict[str, Any]:
    """Take every edit out of a tree: the files come back as they were, byte for byte."""
    from dih20.patches.edits.applying import undo_edits

    given = Tree(user_tree(tree))
    undo_edits(given)
    return _written(ui, given, f"take all edits out of {tree}", only_plan)


def _written(ui: Console, tree: Tree, title: str, only_plan: bool) -> dict[str, Any]:
    paths = sorted(tree.changes)
    plan = Plan(title=title, actions=tuple(Action(verb="write", target=path) for path in paths))
    ui.plan(plan)
    if only_plan:
        return plan.as_dict()
    locked = [path for path in paths if not _writable(tree.root / path)]
    if locked:
        raise PatchError(
            found=f"{locked[0]} in the tree cannot be written",
            expected="files that this user may replace",
            remedy="change their owner or mode, or take a copy of the tree",
        )
    try:
        tree.write()
    except OSError as fault:
        raise PatchError(
            found=f"{tree.root} was not written: {fault}",
            expected=f"room and leave to write {len(paths)} files beside those that they replace",
            remedy="make room or change the mode of what is named, then run the command again",
        ) from fault
    ui.line(f"{len(paths)} files written")
    return {"files": paths}


def _writable(path: Path) -> bool:
    import os

    return os.access(path.parent, os.W_OK)
