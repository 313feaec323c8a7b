"""F07: what git and checkouts can be like, and what is said about it before a compiler starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dih20.errors import WheelError
from dih20.wheels.recipes import RecipeSource
from dih20.wheels.sources import commit_of, empty_submodules, folder_of, refuse_empty_submodules

MODULES = '[submodule "cutlass"]\n\tpath = third-party/cutlass\n\turl = x\n[submodule "fmt"]\n\tpath = third-party/fmt\n'


def _git(folder: Path, *arguments: str) -> str:
    argv = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "-c",
        f"safe.directory={folder}",
    ]
    done = subprocess.run(
        [*argv, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    tree = tmp_path / "vendor"
    tree.mkdir()
    (tree / "setup.py").write_text("setup()\n")
    _git(tree, "init", "--quiet")
    _git(tree, "add", ".")
    _git(tree, "commit", "--quiet", "-m", "first")
    return tree


def test_the_commit_of_a_checkout_that_another_user_owns_is_found(checkout: Path) -> None:
    expected = _git(checkout, "rev-parse", "HEAD")
    for folder, _, files in os.walk(checkout):
        for path in [folder, *(os.path.join(folder, name) for name in files)]:  # noqa: PTH118
            os.chown(path, 1000, 1000)
    refused = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "dubious ownership" in refused.stderr, "the case does not arise here"
    assert commit_of(checkout) == expected
    trusted = subprocess.run(
        ["git", "config", "--global", "--get-all", "safe.directory"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(checkout) not in trusted.stdout


def test_an_exported_tree_has_no_commit_and_that_is_an_error(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    with pytest.raises(WheelError, match="cannot determine commit"):
        commit_of(checkout)


def test_an_exported_tree_inside_another_repository_does_not_borrow_its_commit(
    checkout: Path,
) -> None:
    inner = checkout / "exported"
    inner.mkdir()
    with pytest.raises(WheelError, match="cannot determine commit"):
        commit_of(inner)


def test_a_repository_without_a_commit_is_an_error(tmp_path: Path) -> None:
    _git(tmp_path, "init", "--quiet")
    with pytest.raises(WheelError, match="cannot determine commit"):
        commit_of(tmp_path)


def test_each_empty_submodule_is_named_and_filled_ones_are_not(checkout: Path) -> None:
    (checkout / ".gitmodules").write_text(MODULES)
    (checkout / "third-party" / "fmt").mkdir(parents=True)
    (checkout / "third-party" / "fmt" / "fmt.h").touch()
    assert empty_submodules(checkout) == ["third-party/cutlass"]
    (checkout / "third-party" / "cutlass").mkdir()
    (checkout / "third-party" / "cutlass" / ".git").touch()
    with pytest.raises(WheelError) as caught:
        refuse_empty_submodules(checkout)
    assert "third-party/cutlass" in caught.value.found
    assert "third-party/fmt" not in caught.value.found
    assert "submodule update --init --recursive" in caught.value.remedy


def test_nested_submodules_are_looked_into(checkout: Path) -> None:
    (checkout / ".gitmodules").write_text(MODULES)
    fmt, cutlass = (checkout / "third-party" / name for name in ("fmt", "cutlass"))
    fmt.mkdir(parents=True)
    (fmt / "fmt.h").touch()
    cutlass.mkdir()
    (cutlass / ".gitmodules").write_text('[submodule "x"]\n\tpath = deps/x\n')
    assert empty_submodules(checkout) == ["third-party/cutlass/deps/x"]


def test_a_tree_without_submodules_passes(checkout: Path) -> None:
    refuse_empty_submodules(checkout)


def test_a_path_source_that_is_not_there_is_an_error() -> None:
    with pytest.raises(WheelError, match="no folder dropins/nothing"):
        folder_of(RecipeSource(path="dropins/nothing"))
