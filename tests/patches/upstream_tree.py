"""The real upstream tree, fetched by hash, and small edits over code of our own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dih20.console import Console
from dih20.patches.applying import Outcome, apply_all
from dih20.patches.series import Patch, load
from dih20.patches.tree import Tree
from dih20.paths import REPOSITORY

EDITS = REPOSITORY / "patches/sm90"


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked engine source, unpacked; tests only read it."""
    from dih20.config import load_mirrors
    from dih20.fetch import fetch_files, unpack_source
    from dih20.lock import Lock

    lock = Lock.load()
    file = lock.source("deepinfer").file
    assert file is not None
    fetch_files(Console(as_json=True), [file], load_mirrors(), what="the engine's sources")
    return unpack_source("deepinfer", lock, tmp_path_factory.mktemp("upstream"))


@pytest.fixture
def copy_of(upstream: Path, tmp_path: Path) -> Path:
    """A copy of the upstream tree that a test may change."""
    return Path(shutil.copytree(upstream, tmp_path / "copy"))


@pytest.fixture(scope="session")
def series() -> list[Patch]:
    """The project's edits, those for tests alone included."""
    return [patch for patch in load(test_only=True) if patch.folder]


@pytest.fixture(scope="session")
def patched(upstream: Path, series: list[Patch], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the edits touch, patched; tests only read them."""
    root = tmp_path_factory.mktemp("patched")
    tree, _ = lay(upstream, *series)
    for path, entry in tree.changes.items():
        assert entry is not None
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(entry.content)
    return root


@pytest.fixture
def make_edit(tmp_path: Path) -> Callable[..., Patch]:
    """Write an edit's folder and give it as a patch; changes are dictionaries as in edit.yaml."""

    def make(
        *changes: dict[str, Any],
        code: dict[str, str] | None = None,
        edit: str = "P50-x",
        **keys: Any,
    ) -> Patch:
        folder = tmp_path / "sm90" / edit
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        values = {
            "id": edit,
            "title": "t",
            "reason": "r",
            "upstream": "none",
            "removable-when": "never",
            "verified-by": ["tests"],
            "changes": list(changes),
            **keys,
        }
        (folder / "edit.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        for name, text in (code or {}).items():
            (folder / name).write_text(text)
        return Patch(name=f"sm90/{edit}", text=b"", origin="series", folder=folder)

    return make


@pytest.fixture
def own_copy(tmp_path: Path) -> Callable[[str], Patch]:
    """Copy one of the project's edits, so that a test may change it."""

    def copy(edit: str) -> Patch:
        folder = tmp_path / "sm90" / edit
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(EDITS / edit, folder)
        return Patch(name=f"sm90/{edit}", text=b"", origin="series", folder=folder)

    return copy


def lay(root: Path, *patches: Patch) -> tuple[Tree, list[Outcome]]:
    """Lay patches over a tree in memory."""
    tree = Tree(root)
    return tree, apply_all(tree, patches)


def rewrite(root: Path, file: str, old: str, new: str, count: int = 1) -> None:
    """Change a file of a tree as a later upstream might; `old` must stand there `count` times."""
    path = root / file
    text = path.read_text()
    assert text.count(old) == count, f"{file} has {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))
