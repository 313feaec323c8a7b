"""What `inv patch` shows: check, status, the resulting diff, and the plan."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.errors import UsageError
from dih20.lock import Lock
from dih20.patches.applying import Outcome, apply_all
from dih20.patches.evaluate import Evaluation, evaluate
from dih20.patches.in_place import user_tree
from dih20.patches.prepare import counted, prepare_tree
from dih20.patches.resulting_diff import resulting_diff
from dih20.patches.series import TRAILERS, Patch, load, load_for, unlisted
from dih20.patches.tree import Tree, tree_hash
from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan

_WITH_TREE = ("check", "diff", "diagnose", "undo", "in_place")
_NEEDS_TREE = ("diagnose", "undo", "in_place")


def require_one_mode(*, tree: str = "", test_only: bool = False, **modes: bool) -> None:
    """Refuse flags that contradict each other."""
    chosen = [name for name, on in modes.items() if on and name != "plan"]
    plan = modes.get("plan", False)
    if plan and not set(chosen) <= {"undo", "in_place"}:
        chosen.append("plan")
    fault = ""
    if len(chosen) > 1:
        fault = " and ".join(_flag(name) for name in chosen[:2])
    elif tree and not any(modes.get(name) for name in _WITH_TREE):
        fault = "--tree alone"
    elif not tree and chosen and chosen[0] in _NEEDS_TREE:
        fault = f"{_flag(chosen[0])} without --tree"
    elif test_only and chosen and chosen[0] in ("undo", "diagnose"):
        fault = f"--test-only and {_flag(chosen[0])}"
    if fault:
        raise UsageError(
            found=f"{fault} on one `inv patch`",
            expected="at most one of --check, --status, --diff, --diagnose, --in-place, --undo; --tree goes "
            "with --check and --diff, and the last three need it; --plan is for writing",
            remedy="leave one of them out",
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def evaluated(source: str, tree: str = "", *, test_only: bool = False) -> Iterator[Evaluation]:
    """Try the patchset on the locked upstream, or on a tree of the user's that is only read."""
    if tree:
        given = Tree(user_tree(tree))
        source_hash = tree_hash(given)
        tried = tuple(apply_all(given, load(source, test_only=test_only)))
        yield Evaluation(tree=given, outcomes=tried, source_hash=source_hash)
        return
    lock = Lock.load()
    with tempfile.TemporaryDirectory(prefix="dih20-") as scratch:
        patches = load_for(lock, source, test_only=test_only)
        yield evaluate(lock, source, patches, Path(scratch))


def check(ui: Console, source: str, tree: str, *, test_only: bool = False) -> dict[str, Any]:
    """Print what each patch would do; the first refusal becomes the exit code."""
    with evaluated(source, tree, test_only=test_only) as found:
        rows = [[o.patch.name, o.state, o.note] for o in found.outcomes]
        if rows:
            ui.table(["patch", "state", "note"], rows)
        else:
            ui.line(f"no patches for {source}")
        show_parts(ui, found.outcomes)
        require_all(found.outcomes)
        identity = found.require().identity
        ui.line(f"{counted(rows)} tried, none refused; the tree would be {identity}")
        return {"identity": identity, "patches": outcomes(found)}


def show_parts(ui: Console, outcomes: Sequence[Outcome]) -> None:
    """Print a paragraph for each place of an edit that does not fit, with what to do about it."""
    for outcome in outcomes:
        for part in outcome.parts:
            if part.ok and part.state != "already upstream":
                continue
            ui.line(f"{outcome.patch.name}: {part.place}: {part.state}")
            if part.expected:
                ui.line(f"    fingerprint {part.expected} expected, {part.found} found")
            ui.line(f"    {part.note}")


def require_all(outcomes: Sequence[Outcome]) -> None:
    """Raise the first refusal; with --json it carries what became of every patch."""
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    if not refused:
        return
    error = refused[0].error
    assert error is not None
    others = ", ".join(outcome.patch.name for outcome in refused[1:])
    raise type(error)(
        found=error.found + (f" (refused too: {others})" if others else ""),
        expected=error.expected,
        remedy=error.remedy,
        details={"patches": [_outcome(outcome) for outcome in outcomes]},
    )


def status(ui: Console, source: str) -> dict[str, Any]:
    """Print what the patchset holds and why; reads no upstream."""
    patches = load(source, test_only=True)
    beside = unlisted() if source == "deepinfer" else []
    for patch in patches:
        kind = f"{patch.origin}, for tests alone" if patch.test_only else patch.origin
        ui.line(f"{patch.name}  ({kind}, sha256 {patch.sha256[:12]})")
        for trailer in TRAILERS:
            if text := patch.trailers.get(trailer):
                ui.line(f"    {trailer}: {text}")
    for name in beside:
        ui.warn(f"{name} is not named in patches/sm90/series, so it is not applied")
    if not patches:
        ui.line(f"no patches for {source}")
    return {"patches": [_described(patch) for patch in patches], "not in series": beside}


def diff(ui: Console, source: str, tree: str, *, test_only: bool = False) -> dict[str, Any]:
    """Print the whole change to upstream as one diff, fit for `git apply`."""
    with evaluated(source, tree, test_only=test_only) as found:
        text = resulting_diff(found.require().tree).decode("utf-8", errors="backslashreplace")
    if not ui.as_json:
        ui.raw(text)
    return {"diff": text}


def plan(ui: Console, source: str, *, test_only: bool = False) -> dict[str, Any]:
    """Print what applying would do."""
    with evaluated(source, test_only=test_only) as found:
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


def apply(ui: Console, source: str, *, test_only: bool = False) -> dict[str, Any]:
    """Make the patched tree, or find it made."""
    tree = prepare_tree(ui, Lock.load(), source, test_only=test_only)
    ui.line(f"{shown(tree.path)}  {counted(tree.patches)}, identity {tree.identity}")
    return {"path": str(tree.path), "identity": tree.identity, "patches": list(tree.patches)}


def outcomes(found: Evaluation) -> list[dict[str, Any]]:
    return [_outcome(outcome) for outcome in found.outcomes]


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.patch.name,
        "state": outcome.state,
        "note": outcome.note,
        "files": list(outcome.files),
        **({"parts": [part.as_dict() for part in outcome.parts]} if outcome.parts else {}),
    }


def _described(patch: Patch) -> dict[str, Any]:
    return {
        "name": patch.name,
        "origin": patch.origin,
        "sha256": patch.sha256,
        "trailers": patch.trailers,
    }
