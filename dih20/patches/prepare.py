"""The patched upstream tree in build/trees/IDENTITY/, made whole or not at all.

Beside each tree lies IDENTITY.json with the hash of every file. A tree that no longer agrees with
it was changed by hand: it is moved aside, never built from and never deleted.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.console import Console
from dih20.file_guard import only_holder
from dih20.lock import Lock
from dih20.patches.evaluate import Evaluation, evaluate, fixed_hash, inputs_key, made_by
from dih20.patches.series import ENGINE, Patch, load_for
from dih20.patches.tree import Tree
from dih20.paths import build_dir, cache_dir, shown


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """A patched source tree on disk; its files are as they were when it was made."""

    path: Path
    identity: str
    source: str
    patches: tuple[str, ...]


def prepare_tree(
    ui: Console, lock: Lock, source: str = ENGINE, *, test_only: bool = False
) -> PatchedTree:
    """Give the patched tree of a source; a second call with the same inputs only checks it.

    test_only: with the edits that are for tests alone; without, a tree that carries one is refused.
    """
    patches = load_for(lock, source, test_only=test_only)
    with _guarded(ui) as trees:
        if found := _find(ui, trees, lock, source, patches):
            with ui.step("patch", source) as step:
                step.status, step.note = "hit", f"tree {found.identity[:12]} has the same inputs"
            return found
        with tempfile.TemporaryDirectory(prefix=".making-", dir=trees) as scratch:
            with ui.step("patch", source) as step:
                made = evaluate(lock, source, patches, Path(scratch))
                show_outcomes(ui, made)
                if not test_only:
                    made.require().require_no_test_only()
                identity = made.require().identity
                step.note = f"{counted(patches)}, tree {identity[:12]}"
                if not _keep(ui, trees, source, made, identity):
                    step.status = "hit"
                return _named(trees, source, identity, patches)


def patchset_identity(lock: Lock, source: str = ENGINE) -> str:
    """Give the identity that prepare_tree would give, without leaving a tree behind."""
    patches = load_for(lock, source)
    source_hash = fixed_hash(lock, source)
    key = inputs_key(source_hash, patches)
    for manifest in _manifests(build_dir() / "trees"):
        if source_hash and manifest["key"] == key:
            return str(manifest["identity"])
    known = cache_dir() / "patchsets" / f"{key}.{made_by()}"
    if source_hash and known.is_file():
        return known.read_text().strip()
    with tempfile.TemporaryDirectory(prefix="dih20-") as scratch:
        made = evaluate(lock, source, patches, Path(scratch)).require()
        identity = made.require_no_test_only().identity
    if source_hash:
        _remember(known, identity)
    return identity


def _remember(known: Path, identity: str) -> None:
    """Keep an identity, so that a plan need not lay the patches again to know it."""
    known.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=known.parent, delete=False) as fresh:
        fresh.write(f"{identity}\n")
    Path(fresh.name).replace(known)


def show_outcomes(ui: Console, made: Evaluation) -> None:
    """Print a line for each patch that did anything but apply where it says."""
    for outcome in made.outcomes:
        if outcome.state == "applied":
            ui.line(f"  applied  {outcome.patch.name}  ({len(outcome.files)} files)")
        elif outcome.ok:
            ui.warn(f"{outcome.state}  {outcome.patch.name}: {outcome.note}")
        else:
            ui.line(f"  refused  {outcome.patch.name}")


@contextmanager
def _guarded(ui: Console) -> Iterator[Path]:
    """Let one process at a time make trees."""
    trees = build_dir() / "trees"
    with only_holder(trees / ".guard", ui.line):
        yield trees


def _manifests(trees: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(trees.glob("*.json")):
        yield json.loads(path.read_text())


def _find(
    ui: Console, trees: Path, lock: Lock, source: str, patches: Sequence[Patch]
) -> PatchedTree | None:
    """Find a finished tree by the key of its inputs; a path source has none before it is read."""
    if not (source_hash := fixed_hash(lock, source)):
        return None
    key = inputs_key(source_hash, patches)
    manifest = next((m for m in _manifests(trees) if m["key"] == key), None)
    if manifest is None or not _intact(ui, trees, manifest):
        return None
    return _named(trees, source, manifest["identity"], patches)


def _intact(ui: Console, trees: Path, manifest: dict[str, Any]) -> bool:
    """Say whether a tree is on disk as it was made; move it aside when it was changed by hand."""
    tree = trees / manifest["identity"]
    if not tree.is_dir():
        return False
    now = _files(Tree(tree))
    if now == manifest["files"]:
        return True
    paths = sorted(
        path for path in now | manifest["files"] if now.get(path) != manifest["files"].get(path)
    )
    aside = tree.with_name(f"{tree.name}.changed-{time.strftime('%Y%m%dT%H%M%S')}")
    tree.rename(aside)
    ui.warn(f"{shown(tree)} was changed by hand ({', '.join(paths[:3])}); it is now {shown(aside)}")
    return False


def counted(patches: Sequence[object]) -> str:
    return f"{len(patches)} {'patch' if len(patches) == 1 else 'patches'}"


def _keep(ui: Console, trees: Path, source: str, made: Evaluation, identity: str) -> bool:
    """Put the changed tree in place in one step; say False when the same stood there already."""
    made.tree.write()
    patches = [outcome.patch for outcome in made.outcomes]
    manifest = {
        "identity": identity,
        "key": inputs_key(made.source_hash, patches),
        "source": {"name": source, "hash": made.source_hash},
        "patches": [
            {"name": o.patch.name, "sha256": o.patch.sha256, "state": o.state}
            for o in made.outcomes
        ],
        "files": _files(made.tree),
    }
    is_new = not _intact(ui, trees, manifest)
    if is_new:
        made.tree.root.rename(trees / identity)
    fresh = trees / f".{identity}.json"
    fresh.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    fresh.replace(trees / f"{identity}.json")
    return is_new


def _files(tree: Tree) -> dict[str, str]:
    return {path: f"{mode:o} {digest}" for path, mode, digest in tree.files()}


def _named(trees: Path, source: str, identity: str, patches: Sequence[Patch]) -> PatchedTree:
    names = tuple(patch.name for patch in patches)
    return PatchedTree(path=trees / identity, identity=identity, source=source, patches=names)
