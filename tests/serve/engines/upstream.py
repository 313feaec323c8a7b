"""The real engine's sources, and single functions of them that run without a GPU."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from dih20.config import load_mirrors
from dih20.console import Console
from dih20.fetch import fetch_files, unpack_source
from dih20.lock import Lock
from dih20.patches.applying import apply_all
from dih20.patches.series import load
from dih20.patches.tree import Tree


def unpacked(folder: Path) -> Path:
    """Give the released package `deepinfer`, as the lock names it."""
    lock = Lock.load()
    file = lock.source("deepinfer").file
    assert file is not None, "the lock takes deepinfer from an sdist"
    fetch_files(Console(as_json=True), [file], load_mirrors())
    return unpack_source("deepinfer", lock, folder) / "deepinfer"


def edited(folder: Path, edit: str) -> Path:
    """Give the same package with one edit of the patchset."""
    package = unpacked(folder)
    tree = Tree(package.parent)
    (outcome,) = apply_all(tree, [patch for patch in load() if edit in patch.name])
    assert outcome.ok, outcome.error
    tree.write()
    return package


def functions(path: Path, *names: str) -> list[ast.stmt]:
    """Take functions out of a source file, without what they are annotated with."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.returns, node.decorator_list = None, []
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
            found.append(node)
    assert {node.name for node in found if isinstance(node, ast.FunctionDef)} == set(names)
    return found


def defined(bodies: list[list[ast.stmt]], given: dict[str, Any]) -> dict[str, Any]:
    """Run function definitions with these names given; give the namespace they are in."""
    namespace = dict(given)
    module = ast.Module(body=[each for body in bodies for each in body], type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), "upstream", "exec"), namespace)
    return namespace
