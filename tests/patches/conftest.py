"""Small trees, patches as values, and real git to make diffs with."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.lock import Lock, LockedFile, LockedSource
from dih20.patches.applying import Outcome, apply_all
from dih20.patches.series import Patch
from dih20.patches.tree import Tree
from tests.patches.upstream_tree import (
    copy_of,
    make_edit,
    own_copy,
    patched,
    series,
    upstream,
)

__all__ = ["copy_of", "make_edit", "own_copy", "patched", "series", "upstream"]

Files = dict[str, bytes]
MakeTree = Callable[[Files], Tree]
GitDiff = Callable[..., bytes]
Apply = Callable[[Tree, bytes], Outcome]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write files below a new folder. A name that ends in * makes an executable file."""
    count = 0

    def make(files: Files) -> Tree:
        nonlocal count
        count += 1
        root = tmp_path / f"tree{count}"
        root.mkdir()
        for name, content in files.items():
            path = root / name.rstrip("*")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if name.endswith("*") else 0o644)
        return Tree(root)

    return make


@pytest.fixture
def git_diff(tmp_path: Path) -> GitDiff:
    """Give `git diff` between two states of a tree, with its default or other options."""
    repository = tmp_path / "repository"

    def git(*args: str) -> bytes:
        settings = ["-c", "core.autocrlf=false", "-c", "core.quotepath=true", "-c", "gc.auto=0"]
        done = subprocess.run(
            ["git", *settings, "-C", str(repository), *args], check=True, capture_output=True
        )
        return done.stdout

    def write(files: Files) -> str:
        git("rm", "-rfq", "--ignore-unmatch", ".")
        for name, content in files.items():
            path = repository / name.rstrip("*")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if name.endswith("*") else 0o644)
        git("add", "-Af")
        return git("write-tree").decode().strip()

    def diff(before: Files, after: Files, *options: str) -> bytes:
        if not repository.exists():
            subprocess.run(["git", "init", "-q", str(repository)], check=True)
        return git("diff", *options, write(before), write(after))

    return diff


@pytest.fixture
def apply() -> Apply:
    def run(tree: Tree, text: bytes) -> Outcome:
        return apply_all(tree, [Patch(name="user/x.patch", text=text, origin="user")])[0]

    return run


def contents(tree: Tree) -> Files:
    """Give the files of a tree with its changes, as make_tree takes them."""
    found = {}
    for path, mode, _ in tree.files():
        entry = tree.read(path)
        assert entry is not None
        found[path + ("*" if mode == 0o100755 else "")] = entry.content
    return found


@pytest.fixture(name="contents")
def contents_fixture() -> Callable[[Tree], Files]:
    return contents


@pytest.fixture
def patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A patches folder of the test's own, and build and cache folders too."""
    folder = tmp_path / "patches"
    (folder / "sm90").mkdir(parents=True)
    (folder / "user").mkdir()
    (folder / "sm90/series").write_text("# none\n")
    monkeypatch.setattr("dih20.patches.series.patches_dir", lambda: folder)
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    monkeypatch.setenv("DI_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def sdist_lock(patches: Path) -> Callable[[Files], Lock]:
    """Give a function that makes a lock naming an sdist which is in the cache."""

    def make(files: Files) -> Lock:
        """Pack an sdist into the cache and give a lock that names it."""
        from dih20.fetch.cache import place

        packed = io.BytesIO()
        unclocked = gzip.GzipFile(fileobj=packed, mode="wb", mtime=0)  # the same bytes each second
        with unclocked, tarfile.open(fileobj=unclocked, mode="w") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(f"deepinfer-0.1.0/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        data = packed.getvalue()
        file = LockedFile(
            name="deepinfer",
            version="0.1.0",
            filename="deepinfer-0.1.0.tar.gz",
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            kind="sdist",
        )
        place(file).parent.mkdir(parents=True, exist_ok=True)
        place(file).write_bytes(data)
        source = LockedSource(name="deepinfer", kind="sdist", version="0.1.0", file=file)
        return Lock(image="di-h20", upstream={"deepinfer": source})

    return make
