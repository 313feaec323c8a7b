"""The patched tree on disk: whole, named by its content, found again, never built on when changed."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.errors import FetchError, PatchError, PatchMalformed
from dih20.lock import Lock, LockedSource
from dih20.patches import patchset_identity, prepare_tree
from dih20.patches.tree import Tree, tree_hash
from dih20.paths import REPOSITORY

Files = dict[str, bytes]
GitDiff = Callable[..., bytes]
SdistLock = Callable[[Files], Lock]
BEFORE: Files = {"engine/core.py": b"a = 1\nb = 2\nc = 3\n", "setup.py": b"setup()\n"}
AFTER: Files = {"engine/core.py": b"a = 1\nb = 20\nc = 3\n", "setup.py": b"setup()\n"}


def trees(tmp_path: Path) -> list[str]:
    """Everything that lies where trees are made, but the guard."""
    folder = tmp_path / "build/trees"
    return (
        sorted(path.name for path in folder.iterdir() if path.name != ".guard")
        if folder.exists()
        else []
    )


def test_the_tree_is_made_named_by_its_identity_and_found_again(
    sdist_lock: SdistLock, ui: Console, patches: Path, git_diff: GitDiff, tmp_path: Path
) -> None:
    (patches / "user/b.patch").write_bytes(git_diff(BEFORE, AFTER))
    lock = sdist_lock(BEFORE)
    identity = patchset_identity(lock)
    assert trees(tmp_path) == [], "asking for the identity left something behind"
    tree = prepare_tree(ui, lock)
    assert tree.identity == identity
    assert tree.path == tmp_path / "build/trees" / identity
    assert tree.patches == ("user/b.patch",)
    assert (tree.path / "engine/core.py").read_bytes() == AFTER["engine/core.py"]
    assert trees(tmp_path) == sorted([identity, f"{identity}.json"])

    made = (tree.path / "setup.py").stat().st_ino
    assert prepare_tree(ui, lock) == tree
    assert (tree.path / "setup.py").stat().st_ino == made
    assert ui.steps[-1].status == "hit"
    assert patchset_identity(lock) == identity


def test_the_identity_depends_on_source_patch_texts_their_order_and_nothing_else(
    sdist_lock: SdistLock, patches: Path, git_diff: GitDiff
) -> None:
    middle = {**BEFORE, "new.py": b"n\n"}
    one, two = git_diff(BEFORE, middle), git_diff(middle, {**AFTER, "new.py": b"n\n"})

    def identity(first: bytes, second: bytes, files: Files = BEFORE, names: str = "ab") -> str:
        shutil.rmtree(patches / "user")
        (patches / "user").mkdir()
        (patches / f"user/{names[0]}.patch").write_bytes(first)
        (patches / f"user/{names[1]}.patch").write_bytes(second)
        return patchset_identity(sdist_lock(files))

    plain = identity(one, two)
    assert identity(one, two) == plain
    assert identity(one, two, names="cd") == plain
    assert identity(two, one) != plain
    assert identity(b"Reason: said now\n" + one, two) != plain
    assert identity(one, two, {**BEFORE, "more.py": b"m\n"}) != plain


@pytest.mark.parametrize(("broken", "error"), [(b"+a = 1", PatchError), (b"\r\n", PatchMalformed)])
def test_a_refused_patch_leaves_no_tree_and_names_itself(
    sdist_lock: SdistLock,
    broken: bytes,
    error: type[PatchError],
    ui: Console,
    patches: Path,
    git_diff: GitDiff,
    tmp_path: Path,
) -> None:
    (patches / "user/a.patch").write_bytes(git_diff(BEFORE, {**BEFORE, "new.py": b"n\n"}))
    wrong = git_diff(BEFORE, AFTER)
    wrong = (
        wrong.replace(b"\n", broken) if broken == b"\r\n" else wrong.replace(b" a = 1", b" a = 9")
    )
    (patches / "user/b.patch").write_bytes(wrong)
    with pytest.raises(error, match=r"user/b\.patch"):
        prepare_tree(ui, sdist_lock(BEFORE))
    assert trees(tmp_path) == []
    with pytest.raises(error):
        patchset_identity(sdist_lock(BEFORE))


def test_all_refused_patches_are_named_at_once(
    sdist_lock: SdistLock, ui: Console, patches: Path, git_diff: GitDiff
) -> None:
    for name in ("a", "b"):
        (patches / f"user/{name}.patch").write_bytes(git_diff({name: b"1\n"}, {name: b"2\n"}))
    with pytest.raises(PatchError, match=r"there is no file a \(refused too: user/b\.patch\)"):
        prepare_tree(ui, sdist_lock(BEFORE))


def test_a_users_folder_that_is_named_after_no_source_is_refused(
    sdist_lock: SdistLock, ui: Console, patches: Path
) -> None:
    (patches / "user/deepgemm").mkdir()
    with pytest.raises(PatchError, match="deepgemm: no source 'deepgemm' in the lock"):
        prepare_tree(ui, sdist_lock(BEFORE))


def test_a_source_that_was_not_fetched_names_the_command(
    sdist_lock: SdistLock, ui: Console, tmp_path: Path
) -> None:
    lock = sdist_lock(BEFORE)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(FetchError) as caught:
        prepare_tree(ui, lock)
    assert "./inv fetch" in caught.value.remedy
    assert trees(tmp_path) == []


def test_a_tree_changed_by_hand_is_kept_aside_and_made_again(
    sdist_lock: SdistLock, ui: Console, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = sdist_lock(BEFORE)
    tree = prepare_tree(ui, lock)
    (tree.path / "setup.py").write_text("import pdb\n")
    (tree.path / "notes.txt").write_text("mine\n")
    again = prepare_tree(Console(), lock)
    assert again == tree
    assert (again.path / "setup.py").read_bytes() == BEFORE["setup.py"]
    (aside,) = (tmp_path / "build/trees").glob("*.changed-*")
    assert (aside / "setup.py").read_text() == "import pdb\n"
    assert "was changed by hand (notes.txt, setup.py)" in capsys.readouterr().out


def test_a_tree_that_vanished_is_made_again(sdist_lock: SdistLock, ui: Console) -> None:
    lock = sdist_lock(BEFORE)
    tree = prepare_tree(ui, lock)
    shutil.rmtree(tree.path)
    assert prepare_tree(ui, lock) == tree
    assert (tree.path / "setup.py").exists()


def test_two_at_once_make_one_tree(sdist_lock: SdistLock, tmp_path: Path) -> None:
    lock = sdist_lock(BEFORE)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(prepare_tree(Console(), lock).identity))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert trees(tmp_path) == sorted([found[0], f"{found[0]}.json"])


def test_a_checkout_of_the_users_is_patched_in_a_copy(
    ui: Console, patches: Path, git_diff: GitDiff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "own checkout"
    (checkout / "engine").mkdir(parents=True)
    for name, content in BEFORE.items():
        (checkout / name).write_bytes(content)
    configs = tmp_path / "configs"
    shutil.copytree(REPOSITORY / "configs", configs)
    image = configs / "images/di-h20.yaml"
    image.write_text(image.read_text().replace("sdist: deepinfer==0.1.0", f"path: {checkout}"))
    monkeypatch.setenv("DI_CONFIGS", str(configs))
    source = LockedSource(name="deepinfer", kind="path", version="0.1.0")
    lock = Lock(image="di-h20", upstream={"deepinfer": source})
    (patches / "user/b.patch").write_bytes(git_diff(BEFORE, AFTER))

    before = tree_hash(Tree(checkout))
    tree = prepare_tree(ui, lock)
    assert (tree.path / "engine/core.py").read_bytes() == AFTER["engine/core.py"]
    assert tree_hash(Tree(checkout)) == before
    assert prepare_tree(ui, lock) == tree
    assert ui.steps[-1].status == "hit"
    (checkout / "setup.py").write_bytes(b"setup(1)\n")
    assert prepare_tree(ui, lock).identity != tree.identity


def test_a_git_source_is_patched_at_its_commit(
    ui: Console, patches: Path, git_diff: GitDiff, tmp_path: Path
) -> None:
    (patches / "user/b.patch").write_bytes(git_diff(BEFORE, AFTER))
    repository = tmp_path / "upstream"
    repository.mkdir()
    for name, content in BEFORE.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(content)

    def git(*args: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        done = subprocess.run(
            ["git", "-C", str(repository), *who, *args], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "upstream")
    commit = git("rev-parse", "HEAD")
    shutil.copytree(repository, tmp_path / "cache/git" / commit)
    source = LockedSource(
        name="deepinfer", kind="git", version=f"0.1.0+{commit[:9]}", commit=commit
    )
    tree = prepare_tree(ui, Lock(image="di-h20", upstream={"deepinfer": source}))
    assert (tree.path / "engine/core.py").read_bytes() == AFTER["engine/core.py"]
    assert not (tree.path / ".git").exists()
