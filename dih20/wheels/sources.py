"""The tree that a wheel is built from: found, checked, and described for the identity."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dih20.console import Console
from dih20.errors import WheelError
from dih20.lock import Lock
from dih20.lock.tree_version import check_submodules
from dih20.paths import REPOSITORY, build_dir, shown
from dih20.wheels.identity import digest_of, tree_digest
from dih20.wheels.recipes import RecipeSource

MARKER_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Described:
    """A source as it goes into the identity, known without unpacking anything big."""

    source: str
    patchset: str
    marker: (
        str  # local version label: commit of a git source, patchset of a patched one; may be empty
    )


def describe(lock: Lock, source: RecipeSource) -> Described:
    """Say what a source is: the lock's hash, the patches on it; a folder by its content."""
    if source.path is not None:
        return Described(source=_path_digest(source), patchset="none", marker="")
    from dih20.patches.evaluate import fixed_hash
    from dih20.patches.prepare import patchset_identity
    from dih20.patches.series import load

    assert source.lock is not None
    identity = patchset_identity(lock, source.lock)
    patches = load(source.lock)
    fixed = fixed_hash(lock, source.lock)
    return Described(
        source=fixed or identity,
        patchset=identity if patches else "none",
        marker=_joined(
            _local_part(lock.source(source.lock).version),
            f"di.{identity[:MARKER_LENGTH]}" if patches else "",
        ),
    )


def materialise(ui: Console, lock: Lock, source: RecipeSource) -> Path:
    """Give the folder with the (patched) tree, after the checks that no compiler should have to make."""
    if source.path is not None:
        tree = folder_of(source)
        check_submodules(tree)
        return _staged(source, tree) if source.beside else tree
    from dih20.patches.prepare import prepare_tree

    assert source.lock is not None
    return prepare_tree(ui, lock, source=source.lock).path


def folder_of(source: RecipeSource) -> Path:
    """Give the repository's folder of a path source."""
    assert source.path is not None
    folder = (REPOSITORY / source.path).resolve()
    if not folder.is_dir():
        raise WheelError(
            found=f"no folder {shown(folder)}",
            expected="the source that the recipe names",
            remedy="take it back from git, or correct source.path in the recipe",
        )
    return folder


def _path_digest(source: RecipeSource) -> str:
    own = tree_digest(folder_of(source))
    if not source.beside:
        return own
    others = {name: _digest_beside(_beside(name)) for name in source.beside}
    return digest_of({"own": own, "beside": others})


def _digest_beside(place: Path) -> str:
    return tree_digest(place) if place.is_dir() else digest_of(place.read_text(encoding="utf-8"))


def _beside(name: str) -> Path:
    place = REPOSITORY / name
    if place.exists():
        return place
    raise WheelError(
        found=f"no {name} in this repository",
        expected="a file or folder that the recipe names under source.beside",
        remedy="take it back from git, or correct source.beside in the recipe",
    )


def _staged(source: RecipeSource, tree: Path) -> Path:
    """Give a folder with the source's own files and what stands beside them, each at its path."""
    assert source.path is not None
    into = build_dir() / "wheel-sources" / source.path.replace("/", "-")
    shutil.rmtree(into, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.egg-info")
    shutil.copytree(tree, into, ignore=without)
    for name in source.beside:
        found, target = _beside(name), into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            shutil.copytree(found, target, ignore=without)
        else:
            shutil.copyfile(found, target)
    return into


def git_folder(lock: Lock, source: RecipeSource) -> Path:
    """Give the .git of the checkout that a source comes from, for vendors that ask git for their version."""
    origin = _checkout_of(lock, source)
    if origin is not None and (origin / ".git").is_dir():
        return origin / ".git"
    where = shown(origin) if origin else f"source {source.lock}, an sdist"
    raise WheelError(
        found=f"cannot determine commit: there is no .git folder in {where}",
        expected="a git checkout, because the vendor's version comes from its commit",
        remedy="give the source as git: with a commit, or as path: to a checkout, not to an exported archive",
    )


def _checkout_of(lock: Lock, source: RecipeSource) -> Path | None:
    if source.path is not None:
        return folder_of(source)
    from dih20.config import load_image
    from dih20.fetch.git_trees import git_tree
    from dih20.lock.source_pins import source_folder

    assert source.lock is not None
    locked = lock.source(source.lock)
    if locked.kind == "git":
        return git_tree(locked)
    wanted = load_image(lock.image).sources.get(source.lock)
    return source_folder(wanted.path) if wanted and wanted.path else None


def _local_part(version: str) -> str:
    """Give what follows the + of a version: the commit, and whether files differ from it."""
    return version.partition("+")[2]


def _joined(*labels: str) -> str:
    return ".".join(label for label in labels if label)
