"""The hash of a tree, changes laid over it, and what write() does on disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.errors import PatchError
from dih20.patches.tree import EXECUTABLE, FILE, Entry, Tree, blob_id, tree_hash

Files = dict[str, bytes]
MakeTree = Callable[[Files], Tree]
SOME: Files = {"a.py": b"a\n", "d/b.py": b"b\n"}


def test_the_hash_is_over_path_mode_and_content(make_tree: MakeTree) -> None:
    same = tree_hash(make_tree(SOME))
    assert tree_hash(make_tree(dict(reversed(SOME.items())))) == same
    others = [
        {"a.py": b"A\n", "d/b.py": b"b\n"},
        {"a.py*": b"a\n", "d/b.py": b"b\n"},
        {"a.py": b"a\n", "d/c.py": b"b\n"},
        {"a.py": b"a\n"},
        {**SOME, "empty": b""},
    ]
    hashes = {tree_hash(make_tree(other)) for other in others}
    assert len(hashes) == len(others)
    assert same not in hashes


def test_the_hash_does_not_know_times_or_what_is_no_source(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    same = tree_hash(tree)
    os.utime(tree.root / "a.py", (1, 1))
    (tree.root / ".git").mkdir()
    (tree.root / ".git/HEAD").write_text("x")
    (tree.root / "d/__pycache__").mkdir()
    (tree.root / "d/__pycache__/b.pyc").write_text("x")
    assert tree_hash(tree) == same


def test_a_link_counts_by_its_target_and_is_not_followed(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    (tree.root / "link").symlink_to("a.py")
    one = tree_hash(tree)
    (tree.root / "link").unlink()
    (tree.root / "link").symlink_to("d/b.py")
    assert tree_hash(tree) != one
    (tree.root / "folder").symlink_to("/etc")
    assert "folder/passwd" not in [path for path, _, _ in tree.files()]


def test_the_hash_of_a_tree_with_changes_is_that_of_the_written_tree(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    tree.put("d/e/new.sh", Entry(mode=EXECUTABLE, content=b"x"))
    tree.remove("a.py")
    before = tree_hash(tree)
    tree.write()
    assert (
        tree_hash(Tree(tree.root))
        == before
        == tree_hash(make_tree({"d/b.py": b"b\n", "d/e/new.sh*": b"x"}))
    )


def test_nothing_on_disk_moves_before_write(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    tree.put("a.py", Entry(mode=FILE, content=b"x"))
    tree.remove("d/b.py")
    assert (tree.root / "a.py").read_bytes() == b"a\n"
    assert (tree.root / "d/b.py").exists()
    branch = tree.branch()
    branch.put("c.py", Entry(mode=FILE, content=b"c"))
    assert tree.read("c.py") is None


def test_write_does_not_reach_through_a_hard_link(make_tree: MakeTree, tmp_path: Path) -> None:
    tree = make_tree(SOME)
    theirs = tmp_path / "theirs.py"
    os.link(tree.root / "a.py", theirs)
    tree.put("a.py", Entry(mode=FILE, content=b"changed\n"))
    tree.write()
    assert theirs.read_bytes() == b"a\n"


def test_a_write_that_fails_midway_leaves_every_file_as_it_was(
    make_tree: MakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = make_tree({**SOME, "gone.py": b"gone\n"})
    tree.put("a.py", Entry(mode=FILE, content=b"changed\n"))
    tree.remove("gone.py")
    tree.put("new/c.py", Entry(mode=FILE, content=b"c\n"))
    tree.put("d/b.py", Entry(mode=FILE, content=b"full\n"))
    write_bytes = Path.write_bytes

    def disk_that_fills(path: Path, content: bytes) -> int:
        if content != b"full\n":
            return write_bytes(path, content)
        write_bytes(path, b"fu")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_that_fills)
    with pytest.raises(OSError, match="No space left"):
        tree.write()
    on_disk = {
        str(path.relative_to(tree.root)): path.read_bytes()
        for path in tree.root.rglob("*")
        if path.is_file()
    }
    assert on_disk == {**SOME, "gone.py": b"gone\n"}


def test_a_file_gives_way_to_a_folder_of_its_name(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    tree.remove("a.py")
    tree.put("a.py/x", Entry(mode=EXECUTABLE, content=b"x"))
    tree.write()
    assert (tree.root / "a.py/x").read_bytes() == b"x"
    assert os.access(tree.root / "a.py/x", os.X_OK)
    assert sorted(path.name for path in tree.root.rglob("*")) == ["a.py", "b.py", "d", "x"]


def test_a_folder_left_empty_goes_and_a_file_may_take_its_name(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    tree.remove("d/b.py")
    tree.write()
    assert not (tree.root / "d").exists()
    tree.put("d", Entry(mode=FILE, content=b"a file"))
    tree.write()
    assert (tree.root / "d").read_bytes() == b"a file"


def test_a_file_and_a_folder_cannot_share_a_name(make_tree: MakeTree) -> None:
    tree = make_tree(SOME)
    with pytest.raises(PatchError, match=r"a\.py/x in the tree is below a file"):
        tree.put("a.py/x", Entry(mode=FILE, content=b""))
    with pytest.raises(PatchError, match="d in the tree is a folder"):
        tree.read("d")
    tree.put("n/m", Entry(mode=FILE, content=b""))
    with pytest.raises(PatchError, match="n in the tree is a folder"):
        tree.put("n", Entry(mode=FILE, content=b""))


def test_a_blob_id_is_gits() -> None:
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
