"""What `inv patch` shows: check, status, the resulting diff, and the plan."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.errors import UsageError
from dih20.lock import Lock
from dih20.patches.applying import apply_all
from dih20.patches.evaluate import Evaluation, evaluate
from dih20.patches.prepare import counted, prepare_tree
from dih20.patches.resulting_diff import resulting_diff
from dih20.patches.series import TRAILERS, Patch, load, load_for, unlisted
from dih20.patches.tree import Tree, tree_hash
from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan


def require_one_mode(*, plan: bool, check: bool, status: bool, diff: bool, tree: str) -> None:
    """Refuse flags that contradict each other."""
    chosen = [name for name, on in vars().items() if on and name != "tree"]
    if len(chosen) > 1 or (tree and not (check or diff)):
        what = (
            " and ".join(f"--{name}" for name in chosen[:2]) if len(chosen) > 1 else "--tree alone"
        )
        raise UsageError(
            found=f"{what} on one `inv patch`",
            expected="at most one of --plan, --check, --status, --diff; --tree goes with --check or --diff",
            remedy="leave one of them out",
        )


@contextmanager
def evaluated(source: str, tree: str = "") -> Iterator[Evaluation]:
    """Try the patchset on the locked upstream, or on a tree of the user's that is only read."""
    if tree:
        root = Path(tree).expanduser()
        if not root.is_dir():
            raise UsageError(
                found=f"--tree {tree} is not a folder",
                expected="the top folder of an unpacked upstream tree or of a checkout",
                remedy="correct the path",
            )
        given = Tree(root)
        source_hash = tree_hash(given)
        tried = tuple(apply_all(given, load(source)))
        yield Evaluation(tree=given, outcomes=tried, source_hash=source_hash)
        return
    lock = Lock.load()
    with tempfile.TemporaryDirectory(prefix="dih20-") as scratch:
        yield evaluate(lock, source, load_for(lock, source), Path(scratch))


def check(ui: Console, source: str, tree: str) -> dict[str, Any]:
    """Print what each patch would do; the first refusal becomes the exit code."""
    with evaluated(source, tree) as found:
        rows = [[o.patch.name, o.state, o.note] for o in found.outcomes]
        if rows:
            ui.table(["patch", "state", "note"], rows)
        else:
            ui.line(f"no patches for {source}")
        identity = found.require().identity
        ui.line(f"{counted(rows)} tried, none refused; the tree would be {identity}")
        return {"identity": identity, "patches": outcomes(found)}


def status(ui: Console, source: str) -> dict[str, Any]:
    """Print what the patchset holds and why; reads no upstream."""
    patches = load(source)
    beside = unlisted() if source == "deepinfer" else []
    for patch in patches:
        ui.line(f"{patch.name}  ({patch.origin}, sha256 {patch.sha256[:12]})")
        for trailer in TRAILERS:
            if text := patch.trailers.get(trailer):
                ui.line(f"    {trailer}: {text}")
    for name in beside:
        ui.warn(f"{name} is not named in patches/sm90/series, so it is not applied")
    if not patches:
        ui.line(f"no patches for {source}")
    return {"patches": [_described(patch) for patch in patches], "not in series": beside}


def diff(ui: Console, source: str, tree: str) -> dict[str, Any]:
    """Print the whole change to upstream as one diff, fit for `git apply`."""
    with evaluated(source, tree) as found:
        text = resulting_diff(found.require().tree).decode("utf-8", errors="backslashreplace")
    if not ui.as_json:
        ui.raw(text)
    return {"diff": text}


def plan(ui: Console, source: str) -> dict[str, Any]:
    """Print what applying would do."""
    with evaluated(source) as found:
        identity = found.require().identity
        actions = [
            Action(
                verb="apply",
                target=o.patch.name,
                why=o.note or ", ".join(o.files[:4]),
                needed=o.state != "already",
            )
            for o in found.outcomes
        ]
    tree = build_dir() / "trees" / identity
    there = tree.with_name(f"{identity}.json").exists() and tree.is_dir()
    if there:
        actions = []
    why = "made from the same inputs before" if there else "no tree has this identity yet"
    actions.append(Action(verb="write", target=shown(tree), why=why, needed=not there))
    made = Plan(title=f"patch {source}", actions=tuple(actions))
    ui.plan(made)
    return made.as_dict()


def apply(ui: Console, source: str) -> dict[str, Any]:
    """Make the patched tree, or find it made."""
    tree = prepare_tree(ui, Lock.load(), source)
    ui.line(f"{shown(tree.path)}  {counted(tree.patches)}, identity {tree.identity}")
    return {"path": str(tree.path), "identity": tree.identity, "patches": list(tree.patches)}


def outcomes(found: Evaluation) -> list[dict[str, Any]]:
    return [
        {"name": o.patch.name, "state": o.state, "note": o.note, "files": list(o.files)}
        for o in found.outcomes
    ]


def _described(patch: Patch) -> dict[str, Any]:
    return {
        "name": patch.name,
        "origin": patch.origin,
        "sha256": patch.sha256,
        "trailers": patch.trailers,
    }
