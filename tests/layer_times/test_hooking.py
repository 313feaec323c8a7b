"""Every name that is wrapped stands in the release, in the module that is said to call it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dih20.layer_times import hooking
from dih20.paths import REPOSITORY
from tests.patches.upstream_tree import upstream

pytestmark = pytest.mark.torch
__all__ = ["upstream"]  # a fixture


def names(path: Path) -> set[str]:
    """Give what a module defines or imports, and the methods of its classes as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{each.name}" for each in methods}
    return found


def source(root: Path, module: str) -> Path:
    path = Path(*module.split("."))
    base = root if module.startswith("deepinfer") else REPOSITORY
    whole = base / path.with_suffix(".py")
    return whole if whole.is_file() else base / path / "__init__.py"


def test_wrapped_operators_are_names_of_their_modules(upstream: Path) -> None:
    for module, entries in hooking._OPERATORS.items():
        if module.startswith("tile_kernels"):
            continue  # a wheel, not a source of this repository
        known = names(source(upstream, module))
        wanted = {entry.split()[0] for entry in entries}
        assert wanted <= known, f"{module}: {sorted(wanted - known)}"


def test_wrapped_methods_exist(upstream: Path) -> None:
    places = [*hooking._PARTS, *hooking._OWN_NAMES]
    places += [f"h20_ops.local_buffers.expert:LocalEPBuffer.{n}" for n in ("dispatch", "combine")]
    places.append("h20_ops.local_buffers.engram:LocalEngramBuffer._hook")
    for place in places:
        module, method = place.split(":")
        assert method in names(source(upstream, module)), place
