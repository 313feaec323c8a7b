"""Try a patchset on an unpacked upstream tree, in memory, and name what comes out."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import PatchError
from dih20.fetch import unpack_source
from dih20.lock import Lock
from dih20.patches.applying import Outcome, apply_all
from dih20.patches.series import Patch
from dih20.patches.tree import Tree, tree_hash

FORMAT = 1
_TEST_ONLY = b" TEST-ONLY "


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An upstream tree with the patchset laid over it, and what became of each patch."""

    tree: Tree
    outcomes: tuple[Outcome, ...]
    source_hash: str

    @property
    def refused(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.ok]

    def require(self) -> Evaluation:
        """Give itself, or raise the first refusal: a patchset applies whole or not at all."""
        if not self.refused:
            return self
        error = self.refused[0].error
        assert error is not None
        if len(self.refused) > 1:
            others = ", ".join(outcome.patch.name for outcome in self.refused[1:])
            raise type(error)(
                found=f"{error.found} (refused too: {others})",
                expected=error.expected,
                remedy=error.remedy,
            )
        raise error

    def require_no_test_only(self) -> Evaluation:
        """Give itself, or refuse a tree that carries an edit which is for tests alone."""
        for path, _, _ in self.tree.files():
            entry = self.tree.read(path) if path.endswith(".py") else None
            if entry is not None and _TEST_ONLY in entry.content:
                marker = entry.content[entry.content.index(_TEST_ONLY) :].split(b"\n")[0]
                raise PatchError(
                    found=f"{path} carries an edit for tests alone: {marker.decode().strip()}",
                    expected="a tree without test-only edits wherever wheels or images are made",
                    remedy="take it out with `./inv patch --undo --tree DIR`, or name another source",
                )
        return self

    @property
    def identity(self) -> str:
        """Give the sha256 over source hash, patch texts, and path, mode and content of every file."""
        texts = [outcome.patch.sha256 for outcome in self.outcomes]
        return _digest([FORMAT, self.source_hash, texts, tree_hash(self.tree)])


def evaluate(lock: Lock, source: str, patches: Sequence[Patch], scratch: Path) -> Evaluation:
    """Unpack a locked source below scratch and try the patches on it."""
    root = unpack_source(source, lock, scratch)
    if scratch.resolve() not in root.resolve().parents:
        raise PatchError(
            found=f"source {source} was unpacked to {root}",
            expected=f"a folder below {scratch}: a user's own checkout is never written to",
            remedy="report this as a fault of dih20.fetch.unpack_source",
        )
    for folder in root.rglob("__pycache__"):
        shutil.rmtree(folder)
    tree = Tree(root)
    source_hash = fixed_hash(lock, source) or tree_hash(tree)
    return Evaluation(tree=tree, outcomes=tuple(apply_all(tree, patches)), source_hash=source_hash)


def fixed_hash(lock: Lock, source: str) -> str:
    """Give the hash that the lock pins a source by; empty for a path, whose content may change."""
    locked = lock.source(source)
    if locked.kind == "path":
        return ""
    return locked.file.sha256 if locked.file else locked.commit or ""


def inputs_key(source_hash: str, patches: Sequence[Patch]) -> str:
    """Give a key over all inputs, known before anything is unpacked; equal keys give equal trees."""
    return _digest([FORMAT, source_hash, [patch.sha256 for patch in patches]])


def made_by() -> str:
    """Give a hash over the code that lays patches: a result of other code is no result of this one."""
    from importlib.metadata import version

    own = Path(__file__).parent
    sources = sorted(own.glob("*.py")) + sorted((own / "edits").glob("*.py"))
    return _digest(
        [version("libcst"), [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]]
    )[:16]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
