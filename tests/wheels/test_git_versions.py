"""F07 in containers: a vendor that asks git for its version and insists on a clean tree, built as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_mirrors
from dih20.console import Console
from dih20.errors import WheelError
from dih20.fetch import cached, fetch_files
from dih20.lock import Lock
from dih20.wheels.recipes import Build, Recipe, RecipeSource
from dih20.wheels.store import Store
from dih20.wheels.wheel_set import build_wheels

pytestmark = pytest.mark.docker

SETUP = """
import subprocess
from setuptools import setup
status = subprocess.check_output(["git", "status", "--porcelain"], text=True).strip()
assert not status, f"tree not clean: {status}"
commit = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], text=True).strip()
setup(name="vendor", version="1.0+g" + commit, packages=["vendor"])
"""


@pytest.fixture(scope="module")
def git_image(engine: Any, standin_image: str) -> Iterator[str]:
    """The stand-in base with the lock's git on it."""
    lock, ui = Lock.load(), Console(as_json=True)
    debs = lock.debs("stand-in")
    fetch_files(ui, [*debs, *lock.build_requirements("cp313")], load_mirrors())
    container = engine.containers.create(standin_image, ["sleep", "300"], network_mode="none")
    try:
        container.start()
        import io
        import tarfile

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for deb in debs:
                tar.add(cached(deb), arcname=f"debs/{deb.filename}")
        container.put_archive("/tmp", packed.getvalue())
        code, output = container.exec_run(
            ["sh", "-c", "dpkg -i /tmp/debs/*.deb && rm -r /tmp/debs"]
        )
        assert code == 0, output[-2000:]
        image = container.commit(repository="git-for-tests", tag="1")
    finally:
        container.remove(force=True)
    yield str(image.id)
    engine.images.remove(image.id, force=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A vendor's checkout, owned by another user."""
    tree = tmp_path / "vendor-tree"
    (tree / "vendor").mkdir(parents=True)
    (tree / "vendor" / "__init__.py").write_text("")
    (tree / "setup.py").write_text(SETUP)
    (tree / ".gitignore").write_text("*.egg-info/\nbuild/\n")
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", *identity, "-C", str(tree), *arguments], check=True)
    _give_away(tree)
    return tree


def _give_away(tree: Path) -> None:
    os.chown(tree, 1000, 1000)
    for path in tree.rglob("*"):
        os.chown(path, 1000, 1000, follow_symlinks=False)


def _head(tree: Path) -> str:
    argv = [
        "git",
        "-c",
        f"safe.directory={tree}",
        "-C",
        str(tree),
        "rev-parse",
        "--short=12",
        "HEAD",
    ]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def _build(client: Any, image: str, tree: Path, tmp_path: Path) -> Any:
    recipe = Recipe(
        name="vendor",
        distribution="vendor",
        about="asks git for its version",
        source=RecipeSource(path=str(tree)),
        python_tag="py3",
        build=Build(version_from_git=True),
        imports=("vendor",),
    )
    ui = Console(as_json=True)
    store = Store(tmp_path / "wheels")
    return build_wheels(ui, client, image, Lock.load(), recipes=[recipe], store=store)[0]


@pytest.fixture(autouse=True)
def _own_build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))


def test_a_checkout_of_another_user_gives_its_own_commit_as_version(
    engine: Any, git_image: str, checkout: Path, tmp_path: Path
) -> None:
    row = _build(engine, git_image, checkout, tmp_path)
    assert row.wheel.version == f"1.0+g{_head(checkout)}"
    owners = {path.stat().st_uid for path in checkout.rglob("*")}
    assert owners == {1000}, "the checkout itself must stay as it is"


def test_a_changed_tree_builds_under_a_commit_of_its_own(
    engine: Any, git_image: str, checkout: Path, tmp_path: Path
) -> None:
    before = _head(checkout)
    (checkout / "vendor" / "patched.py").write_text("x = 1\n")
    row = _build(engine, git_image, checkout, tmp_path)
    assert row.wheel.version.startswith("1.0+g")
    assert row.wheel.version != f"1.0+g{before}"
    assert _head(checkout) == before


def test_an_exported_tree_is_refused_before_any_container(
    engine: Any, git_image: str, checkout: Path, tmp_path: Path
) -> None:
    shutil.rmtree(checkout / ".git")
    with pytest.raises(WheelError, match="cannot determine commit"):
        _build(engine, git_image, checkout, tmp_path)
    assert not list((tmp_path / "build" / "logs").glob("wheel-*"))
