from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dih20.wheels.identity import Parts, differences, tree_digest

PARTS = Parts(
    source="a" * 64,
    patchset="none",
    recipe="b" * 64,
    procedure="f" * 64,
    environment="c" * 64,
    requirements="d" * 64,
    headers="e" * 63 + "0",
    toolchain="nvcc 13.0.88, g++ 14.2.0",
    torch="2.13.0+cu130 git cf30153c4c13 cuda 13.0",
    python_tag="cp313",
)


@pytest.mark.parametrize("part", [field.name for field in fields(Parts)])
def test_every_part_changes_the_identity_and_is_named(part: str) -> None:
    other = replace(PARTS, **{part: "e" * 64})
    assert other.identity != PARTS.identity
    (line,) = differences(PARTS.as_dict(), other.as_dict())
    assert line.startswith(part.replace("_", " "))


def test_a_rebuilt_torch_of_the_same_version_is_another_torch() -> None:
    rebuilt = replace(PARTS, torch="2.13.0+cu130 git 000000000000 cuda 13.0")
    (line,) = differences(PARTS.as_dict(), rebuilt.as_dict())
    assert "cf30153c4c13" in line
    assert "000000000000" in line


def test_equal_parts_have_one_identity() -> None:
    assert replace(PARTS).identity == PARTS.identity
    assert differences(PARTS.as_dict(), PARTS.as_dict()) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "csrc").mkdir(parents=True)
    (root / "csrc" / "a.cu").write_text("kernel")
    (root / "setup.py").write_text("setup()")
    (root / "link").symlink_to("setup.py")
    return root


def test_times_caches_and_build_output_do_not_count(tree: Path) -> None:
    before = tree_digest(tree)
    os.utime(tree / "setup.py", (1, 1))
    for extra in (
        "__pycache__/x.pyc",
        ".git/HEAD",
        "build/a.o",
        "x.egg-info/PKG-INFO",
        "src/.mypy_cache/y.json",
    ):
        (tree / extra).parent.mkdir(parents=True, exist_ok=True)
        (tree / extra).write_text("noise")
    assert tree_digest(tree) == before


def _edit(tree: Path) -> None:
    (tree / "csrc" / "a.cu").write_text("kerneL")


def _rename(tree: Path) -> None:
    (tree / "setup.py").rename(tree / "setup2.py")


def _make_executable(tree: Path) -> None:
    (tree / "setup.py").chmod(0o755)


def _relink(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("csrc/a.cu")


@pytest.mark.parametrize("change", [_edit, _rename, _make_executable, _relink])
def test_content_names_modes_and_links_count(tree: Path, change: object) -> None:
    before = tree_digest(tree)
    assert callable(change)
    change(tree)
    assert tree_digest(tree) != before
