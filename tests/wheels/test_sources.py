"""F07: where a tree's version comes from, and what is said when it cannot be known."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import LockError, WheelError
from dih20.lock import Lock, LockedSource
from dih20.wheels.recipes import RecipeSource
from dih20.wheels.sources import describe, folder_of, git_folder, materialise

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_an_exported_tree_has_no_commit_and_that_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(WheelError) as caught:
        git_folder(Lock.load(), RecipeSource(path=str(tmp_path)))
    assert "cannot determine commit" in caught.value.found
    assert str(tmp_path) in caught.value.found


def test_an_sdist_has_no_commit_either() -> None:
    with pytest.raises(WheelError, match="cannot determine commit"):
        git_folder(Lock.load(), RecipeSource(lock="deep_gemm"))


def test_the_git_folder_of_a_checkout_is_found(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert git_folder(Lock.load(), RecipeSource(path=str(tmp_path))) == tmp_path / ".git"


def test_empty_submodules_of_a_folder_are_refused_before_a_build(tmp_path: Path) -> None:
    (tmp_path / ".gitmodules").write_text('[submodule "cutlass"]\n\tpath = third-party/cutlass\n')
    (tmp_path / "third-party" / "cutlass").mkdir(parents=True)
    with pytest.raises(LockError, match="third-party/cutlass"):
        materialise(Console(as_json=True), Lock.load(), RecipeSource(path=str(tmp_path)))


def test_a_path_source_that_is_not_there_is_an_error() -> None:
    with pytest.raises(WheelError, match="no folder dropins/nothing"):
        folder_of(RecipeSource(path="dropins/nothing"))


@pytest.mark.parametrize(
    ("version", "patches", "marker"),
    [
        ("2.8.2", [], ""),
        ("2.8.2", ["one.patch"], "di.eeeeeeeeeeee"),
        ("0+g0123456789ab", [], "g0123456789ab"),
        ("1.0+g0123456789ab.dirty", ["one.patch"], "g0123456789ab.dirty.di.eeeeeeeeeeee"),
    ],
)
def test_the_marker_names_commit_changes_and_patchset(
    monkeypatch: pytest.MonkeyPatch, version: str, patches: list[str], marker: str
) -> None:
    import dih20.patches.evaluate
    import dih20.patches.prepare
    import dih20.patches.series

    source = LockedSource(name="vendor", kind="git", version=version, commit=COMMIT)
    lock: Any = SimpleNamespace(source=lambda name: source)
    monkeypatch.setattr(dih20.patches.evaluate, "fixed_hash", lambda lock, name: COMMIT)
    monkeypatch.setattr(dih20.patches.prepare, "patchset_identity", lambda lock, name: "e" * 64)
    monkeypatch.setattr(dih20.patches.series, "load", lambda name: patches)
    found = describe(lock, RecipeSource(lock="vendor"))
    assert found.marker == marker
    assert found.source == COMMIT
    assert (found.patchset == "none") == (not patches)


def test_what_stands_beside_a_folder_is_staged_and_part_of_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dih20.wheels.sources as sources

    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    for name, text in {
        "recipes/x/pyproject.toml": "a",
        "pkg/one.py": "1",
        "pkg/sub/two.py": "2",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pkg/sub/__pycache__").mkdir()
    source = RecipeSource(path="recipes/x", beside=("pkg/one.py", "pkg/sub"))
    staged = materialise(Console(as_json=True), Lock.load(), source)
    files = {p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file()}
    assert files == {"pyproject.toml", "pkg/one.py", "pkg/sub/two.py"}
    before = describe(Lock.load(), source).source
    assert describe(Lock.load(), source).source == before
    (tmp_path / "pkg/sub/two.py").write_text("3")
    assert describe(Lock.load(), source).source != before
    with pytest.raises(WheelError, match="no pkg/gone"):
        describe(Lock.load(), RecipeSource(path="recipes/x", beside=("pkg/gone",)))


def test_the_server_is_shipped_without_the_tool_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.wheels.recipes import load_all

    monkeypatch.setenv("DI_BUILD", str(tmp_path))
    (recipe,) = [recipe for recipe in load_all() if recipe.name == "dih20_serve"]
    assert recipe.source is not None
    staged = materialise(Console(as_json=True), Lock.load(), recipe.source)
    assert {path.name for path in (staged / "dih20").iterdir()} == {
        "__init__.py",
        "errors.py",
        "serve",
    }
    assert not list(staged.rglob("*.pyc"))


def test_every_data_file_of_the_server_travels_in_its_wheel() -> None:
    import fnmatch
    import tomllib

    from dih20.paths import REPOSITORY

    project = tomllib.loads((REPOSITORY / "recipes/dih20_serve/pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    files = [path for path in (REPOSITORY / "dih20/serve").rglob("*") if path.is_file()]
    data = [p for p in files if p.suffix not in (".py", ".pyc") and "__pycache__" not in p.parts]
    assert len(data) >= 4
    left_out = [p.name for p in data if not any(fnmatch.fnmatch(p.name, one) for one in patterns)]
    assert left_out == []
    folders = {path.parent for path in data}
    assert [f for f in folders if not (f / "__init__.py").is_file()] == []  # else it is no package
