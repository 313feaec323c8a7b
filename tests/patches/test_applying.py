"""What a whole patch does to a tree: every kind of change, again, in part, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dih20.patches.applying import Outcome, apply_all
from dih20.patches.series import Patch
from dih20.patches.tree import Tree, tree_hash

Files = dict[str, bytes]
MakeTree = Callable[[Files], Tree]
GitDiff = Callable[..., bytes]
Apply = Callable[[Tree, bytes], Outcome]
Contents = Callable[[Tree], Files]

TEXT = b"".join(b"line %d\n" % n for n in range(40))
BEFORE: Files = {
    "engine/core.py": TEXT,
    "engine/tail.py": b"no newline at the end",
    "engine/gone.py": b"old\n",
    "engine/moves.py": TEXT.replace(b"line", b"row"),
    "run.sh": b"#!/bin/sh\n",
    "plan.sh*": b"#!/bin/sh\necho plan\n",
    "empty.py": b"",
    "caf\u00e9.txt".encode().decode(): "caf\u00e9\n".encode("latin-1"),
}
AFTER: Files = {
    "engine/core.py": TEXT.replace(b"line 5\n", b"line five\n").replace(b"line 30\n", b""),
    "engine/tail.py": b"a newline now\n",
    "moved/here.py": TEXT.replace(b"line", b"row").replace(b"row 3\n", b"row three\n"),
    "run.sh*": b"#!/bin/sh\n",
    "plan.sh": b"#!/bin/sh\necho other plan\n",
    "empty.py": b"not any more\n",
    "new/deep/file.py": b"new = 1",
    "new/void.py": b"",
    "caf\u00e9.txt".encode().decode(): "caf\u00e9 noir\n".encode("latin-1"),
}


@pytest.mark.parametrize(
    "options", [(), ("--no-renames",), ("-C", "--find-copies-harder"), ("-U0",), ("--full-index",)]
)
def test_every_kind_of_change_applies_as_git_made_it(
    options: tuple[str, ...],
    make_tree: MakeTree,
    git_diff: GitDiff,
    apply: Apply,
    contents: Contents,
) -> None:
    tree = make_tree(BEFORE)
    outcome = apply(tree, git_diff(BEFORE, AFTER, *options))
    assert outcome.state == "applied", outcome.note
    assert contents(tree) == AFTER
    tree.write()
    assert contents(Tree(tree.root)) == AFTER
    assert not (tree.root / "engine/gone.py").exists()


def test_a_patch_that_is_there_already_changes_nothing(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    tree = make_tree(AFTER)
    outcome = apply(tree, git_diff(BEFORE, AFTER))
    assert outcome.state == "already", outcome.note
    assert tree.changes == {}


def test_a_patch_that_is_there_already_is_seen_without_hashes_too(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    before, after = {"a.py": TEXT}, {"a.py": TEXT.replace(b"line 9\n", b"line nine\n")}
    diff = git_diff(before, after)
    plain = b"".join(
        line for line in diff.splitlines(keepends=True) if not line.startswith(b"index ")
    )
    assert apply(make_tree(after), plain).state == "already"
    assert apply(make_tree({"a.py": b"# new on top\n" + after["a.py"]}), plain).state == "already"
    assert apply(make_tree(before), plain).state == "applied"


def test_a_patch_that_is_there_in_part_is_refused_and_says_which_part(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    before = {"a.py": TEXT, "b.py": TEXT}
    after = {"a.py": TEXT.replace(b"line 9", b"L9"), "b.py": TEXT.replace(b"line 9", b"L9")}
    tree = make_tree({"a.py": after["a.py"], "b.py": before["b.py"]})
    outcome = apply(tree, git_diff(before, after))
    assert outcome.state == "does not apply"
    assert "it is there in part: a.py has it already, b.py does not" in outcome.note
    assert tree.changes == {}


def test_a_moved_block_is_reported_with_file_hunk_and_lines(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply, contents: Contents
) -> None:
    before, after = {"a.py": TEXT}, {"a.py": TEXT.replace(b"line 20\n", b"line twenty\n")}
    drift = b"# drift\n" * 21
    tree = make_tree({"a.py": drift + before["a.py"]})
    outcome = apply(tree, git_diff(before, after))
    assert outcome.state == "moved"
    assert outcome.note == "a.py: hunk 1 by +21 lines"
    assert contents(tree) == {"a.py": drift + after["a.py"]}


def test_one_bad_file_refuses_the_whole_patch(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    tree = make_tree({**BEFORE, "engine/core.py": TEXT.replace(b"line 6\n", b"line six\n")})
    before = tree_hash(tree)
    outcome = apply(tree, git_diff(BEFORE, AFTER))
    assert outcome.state == "does not apply"
    assert "engine/core.py: hunk 1 of 2: line 7 is 'line six', wanted 'line 6'" in outcome.note
    assert tree.changes == {}
    assert tree_hash(tree) == before


def test_a_patch_edited_by_hand_is_noticed_by_its_index_line(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    before, after = {"a.py": TEXT}, {"a.py": TEXT.replace(b"line 9\n", b"line nine\n")}
    edited = git_diff(before, after).replace(b"+line nine", b"+line NINE")
    outcome = apply(make_tree(before), edited)
    assert outcome.state == "does not apply"
    assert "its lines were edited after the diff was made" in outcome.note


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({}, "there is no file a.py"),
        ({"a.py/inside.py": b""}, "a.py in the tree is a folder"),
        ({"a.py": b"one\ntwo\n", "b.py": b"taken\n"}, "b.py exists, where a.py should go"),
    ],
)
def test_a_rename_is_refused_where_it_cannot_be(
    tree: Files, why: str, make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    diff = git_diff({"a.py": b"one\ntwo\n"}, {"b.py": b"one\ntwo\n"})
    assert b"rename from a.py" in diff
    outcome = apply(make_tree(tree), diff)
    assert outcome.state == "does not apply"
    assert why in outcome.note


def test_a_new_file_is_refused_where_another_stands(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    outcome = apply(make_tree({"new.py": b"theirs\n"}), git_diff({}, {"new.py": b"ours\n"}))
    assert "new.py exists already, with other content or mode" in outcome.note


def test_a_file_with_more_lines_than_the_patch_deletes_is_kept(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    tree = make_tree({"gone.py": TEXT + b"one more\n"})
    outcome = apply(tree, git_diff({"gone.py": TEXT}, {}))
    assert outcome.state == "does not apply"
    assert tree.changes == {}


def test_a_mode_that_is_not_the_expected_one_is_refused(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply
) -> None:
    diff = git_diff({"run.sh": b"#!/bin/sh\n"}, {"run.sh*": b"#!/bin/sh\necho\n"})
    outcome = apply(make_tree({"run.sh*": b"#!/bin/sh\n"}), diff)
    assert "run.sh has mode 100755, wanted 100644" in outcome.note


def test_links_are_never_followed(
    make_tree: MakeTree, git_diff: GitDiff, apply: Apply, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "core.py").write_bytes(TEXT)
    tree = make_tree({"a.py": TEXT})
    (tree.root / "engine").symlink_to(outside)
    (tree.root / "link.py").symlink_to(outside / "core.py")
    changed = TEXT.replace(b"line 9\n", b"line nine\n")
    for path, why in (
        ("engine/core.py", "below the symbolic link engine"),
        ("link.py", "link.py in the tree is a symbolic link"),
    ):
        outcome = apply(tree, git_diff({path: TEXT}, {path: changed}))
        assert outcome.state == "does not apply"
        assert why in outcome.note
    added = apply(tree, git_diff({}, {"engine/new.py": b"x\n"}))
    assert added.state == "does not apply"
    assert (outside / "core.py").read_bytes() == TEXT
    assert sorted(path.name for path in outside.iterdir()) == ["core.py"]


def test_later_patches_see_what_earlier_ones_did_and_a_refused_one_leaves_no_trace(
    make_tree: MakeTree, git_diff: GitDiff, contents: Contents
) -> None:
    one = {"a.py": TEXT}
    two = {"a.py": TEXT.replace(b"line 9\n", b"line nine\n"), "n.py": b"new\n"}
    three = {"a.py": two["a.py"].replace(b"line nine\n", b"line 9.0\n"), "n.py": b"newer\n"}
    tree = make_tree(one)
    patches = [
        Patch(name="1.patch", text=git_diff(one, two), origin="user"),
        Patch(name="2.patch", text=git_diff({"z.py": b"q\n"}, {"z.py": b"r\n"}), origin="user"),
        Patch(name="3.patch", text=git_diff(two, three), origin="user"),
    ]
    assert [o.state for o in apply_all(tree, patches)] == ["applied", "does not apply", "applied"]
    assert contents(tree) == three


def test_diffs_of_the_plain_kind_apply_too(
    make_tree: MakeTree, apply: Apply, contents: Contents
) -> None:
    text = (
        b"diff -ruN old/a.py new/a.py\n--- old/a.py\t2026-01-01 10:00:00.000000000 +0000\n"
        b"+++ new/a.py\t2026-01-02 10:00:00.000000000 +0000\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
        b"diff -ruN old/n.py new/n.py\n--- old/n.py\t1970-01-01 00:00:00.000000000 +0000\n"
        b"+++ new/n.py\t2026-01-02 10:00:00.000000000 +0000\n@@ -0,0 +1 @@\n+new\n"
        b"diff -ruN old/g.py new/g.py\n--- old/g.py\t2026-01-01 10:00:00.000000000 +0000\n"
        b"+++ new/g.py\t1970-01-01 00:00:00.000000000 +0000\n@@ -1 +0,0 @@\n-gone\n"
    )
    tree = make_tree({"a.py": b"one\ntwo\n", "g.py": b"gone\n"})
    assert apply(tree, text).state == "applied"
    assert contents(tree) == {"a.py": b"one\nthree\n", "n.py": b"new\n"}


_LINE = st.sampled_from(
    [
        b"a\n",
        b"b\n",
        b"    return x\n",
        b"\n",
        b"@@ -1 +1 @@\n",
        b"--- a/x\n",
        b"-- \n",
        b"c\r\n",
        b"\\ No\n",
    ]
)
_FILE = st.builds(
    lambda rows, end: b"".join(rows) + end,
    st.lists(_LINE, max_size=30),
    st.sampled_from([b"", b"end"]),
)
_FILES = st.dictionaries(
    st.sampled_from(["a.py", "b.py", "d/c.py*", "d/e f.py"]), _FILE, max_size=4
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=_FILES, after=_FILES, context=st.sampled_from(["-U3", "-U0", "-U1"]))
def test_any_diff_of_git_gives_the_very_tree_and_without_hashes_that_tree_or_a_refusal(
    before: Files,
    after: Files,
    context: str,
    make_tree: MakeTree,
    git_diff: GitDiff,
    apply: Apply,
    contents: Contents,
) -> None:
    diff = git_diff(before, after, "-M", context)
    if not diff:
        return
    tree = make_tree(before)
    outcome = apply(tree, diff)
    assert outcome.state == "applied", outcome.note
    assert contents(tree) == after
    assert apply(make_tree(after), diff).state == "already"

    unproven = b"".join(
        line for line in diff.splitlines(keepends=True) if not line.startswith(b"index ")
    )
    blind = make_tree(before)
    if apply(blind, unproven).state in ("applied", "moved"):
        assert contents(blind) == after
    else:
        assert contents(blind) == before
