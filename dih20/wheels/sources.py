"""The tree that a wheel is built from: found, checked, and described for the identity."""

from __future__ import annotations

import configparser
from dataclasses import dataclass
from pathlib import Path

from dih20.console import Console
from dih20.errors import WheelError
from dih20.hosts.runner import LocalRunner
from dih20.lock import Lock
from dih20.paths import REPOSITORY, shown
from dih20.wheels.identity import tree_digest
from dih20.wheels.recipes import RecipeSource

MARKER_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Described:
    """A source as it goes into the identity, known without unpacking anything big."""

    source: str
    patchset: str
    marker: str  # local version label of a patched build; empty when nothing is patched


def describe(lock: Lock, source: RecipeSource) -> Described:
    """Say what a source is: the lock's hash, the patches on it; a folder by its content."""
    if source.path is not None:
        return Described(source=tree_digest(folder_of(source)), patchset="none", marker="")
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
        marker=f"di.{identity[:MARKER_LENGTH]}" if patches else "",
    )


def materialise(ui: Console, lock: Lock, source: RecipeSource) -> Path:
    """Give the folder with the (patched) tree, after the checks that no compiler should have to make."""
    if source.path is not None:
        tree = folder_of(source)
    else:
        from dih20.patches.prepare import prepare_tree

        assert source.lock is not None
        tree = prepare_tree(ui, lock, source=source.lock).path
    refuse_empty_submodules(tree)
    return tree


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


def refuse_empty_submodules(tree: Path) -> None:
    """Raise when a checkout was cloned without its submodules, naming each empty one."""
    empty = empty_submodules(tree)
    if empty:
        raise WheelError(
            found=f"{shown(tree)}: empty submodule folders: {', '.join(empty)}",
            expected="every path of .gitmodules filled",
            remedy="run `git submodule update --init --recursive` in that checkout, then build again",
        )


def empty_submodules(tree: Path) -> list[str]:
    """Give the paths of .gitmodules that are not there or hold nothing, nested ones included."""
    modules = tree / ".gitmodules"
    if not modules.is_file():
        return []
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string("\n".join(line.strip() for line in modules.read_text().splitlines()))
    empty: list[str] = []
    for section in parser.sections():
        path = parser.get(section, "path", fallback="")
        folder = tree / path
        if not path:
            continue
        if not folder.is_dir() or not any(p.name != ".git" for p in folder.iterdir()):
            empty.append(path)
        else:
            empty += [f"{path}/{inner}" for inner in empty_submodules(folder)]
    return empty


def commit_of(tree: Path) -> str:
    """Give the commit of a checkout; git's trust is extended to that one folder, for that one command."""
    argv = ["git", "-c", f"safe.directory={tree}", "-C", str(tree), "rev-parse", "--verify", "HEAD"]
    result = LocalRunner().run(argv, check=False)
    is_own = (tree / ".git").exists()
    if not result.ok or not is_own:
        why = result.last_lines(1) if is_own else "there is no .git in it"
        raise WheelError(
            found=f"cannot determine commit of {shown(tree)}: {why}",
            expected="a git checkout, because the vendor's version comes from its commit",
            remedy="use a checkout instead of an exported archive, or a git: source with its commit",
        )
    return result.text.strip()
