"""A patch file that is not a sound diff is told apart from one that does not apply (case F48)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dih20.errors import PatchError, PatchMalformed
from dih20.patches.applying import Outcome
from dih20.patches.diff_file import read_diff
from dih20.patches.tree import Tree, tree_hash

Files = dict[str, bytes]
SOUND = b"""\
Raise the limit

Reason: hosts with more pages
diff --git a/limits.py b/limits.py
--- a/limits.py
+++ b/limits.py
@@ -1,5 +1,5 @@
 first = 1

-second = 2
+second = 20
 third = 3
 fourth = 4
""".replace(b"first = 1\n\n", b"first = 1\n \n")
BEFORE = {"limits.py": b"first = 1\n\nsecond = 2\nthird = 3\nfourth = 4\n"}
#: sha256 over (path, mode, content) of the tree with the sound patch applied
GOLDEN = "bb7335f3664f3b451e3ce62f8d67ef9a66ce8d0d8d10b25c7920648253327b94"


def test_the_sound_patch_gives_the_golden_tree(
    make_tree: Callable[[Files], Tree], apply: Callable[[Tree, bytes], Outcome]
) -> None:
    tree = make_tree(BEFORE)
    assert apply(tree, SOUND).state == "applied"
    assert tree_hash(tree) == GOLDEN


def _line(text: bytes, start: bytes) -> int:
    return next(n for n, line in enumerate(text.split(b"\n"), 1) if line.startswith(start))


BROKEN = {
    "CRLF on every line": (SOUND.replace(b"\n", b"\r\n"), "CRLF at line 1 "),
    "CRLF in the diff alone": (
        SOUND.replace(b"\n", b"\r\n").replace(b"\r\n", b"\n", 3),
        "CRLF at line 4 ",
    ),
    "CRLF in the file names alone": (
        SOUND.replace(b"/limits.py\n", b"/limits.py\r\n").replace(
            b"diff --git a/limits.py b/limits.py\r\n", b""
        ),
        "CRLF at line 4 ",
    ),
    "blank context without its space": (
        SOUND.replace(b"\n \n", b"\n\n"),
        "a blank context line without its leading space at line 9 ",
    ),
    "no final newline": (SOUND[:-1], "no newline after the last line (cut off?) at line 13 "),
    "cut off": (SOUND[: SOUND.index(b" fourth")], "hunk is shorter than expected at line 12 "),
    "counts too small": (
        SOUND.replace(b"-1,5 +1,5", b"-1,4 +1,4"),
        "a line that belongs to no hunk (wrong counts in its @@ line?) at line 13 ",
    ),
    "counts too large": (
        SOUND.replace(b"-1,5 +1,5", b"-1,6 +1,6"),
        "hunk is shorter than expected",
    ),
    "a line without its mark": (
        SOUND.replace(b" third", b"third"),
        "hunk diff line expected: third = 3 at line 12",
    ),
    "lines after the one marked as last": (
        SOUND.replace(b"-second = 2\n", b"-second = 2\n\\ No newline at end of file\n"),
        "a line after the one marked as last at line 13 ",
    ),
    "UTF-16": (
        "\ufeff".encode("utf-16-le") + SOUND.decode().encode("utf-16-le"),
        "UTF-16 text at line 1 ",
    ),
    "byte order mark": (b"\xef\xbb\xbf" + SOUND, "a byte order mark at line 1 "),
    "empty": (b"", "an empty file at line 1 "),
    "no diff in it": (b"Dear all,\n\nplease apply.\n", "no diff in it at line 3 "),
    "a hunk of no file": (
        b"@@ -1 +1 @@\n-a\n+b\n",
        "unexpected hunk found: @@ -1 +1 @@ at line 1 ",
    ),
    "a binary change": (
        b"diff --git a/x.png b/x.png\nindex 111..222 100644\nBinary files a/x.png and b/x.png differ\n",
        "a binary change, which a unified diff cannot hold, at line 1 ",
    ),
    "a binary change with its bytes": (
        b"diff --git a/x.png b/x.png\nindex 111..222 100644\nGIT binary patch\nliteral 1\nIcmZP\n\n",
        "a binary change, which a unified diff cannot hold, at line 1 ",
    ),
    "a symbolic link": (
        b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n",
        "a symbolic link (mode 120000), which is not applied, at line 1 ",
    ),
    "a submodule": (
        b"diff --git a/v b/v\nnew file mode 160000\n--- /dev/null\n+++ b/v\n@@ -0,0 +1 @@\n+Subproject commit 1\n",
        "a submodule (mode 160000), which is not applied, at line 1 ",
    ),
    "two names for one file": (
        b"--- a/one.py\n+++ b/two.py\n@@ -1 +1 @@\n-a\n+b\n",
        "two names for one file, one.py and two.py, at line 1 ",
    ),
    "a bad quoted name": (
        b'--- "a/\\9.py"\n+++ "b/\\9.py"\n@@ -1 +1 @@\n-a\n+b\n',
        'the quoted name "a/\\9.py" at line 1 ',
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_malformed_patch_names_its_line_and_leaves_the_tree_alone(
    kind: str, make_tree: Callable[[Files], Tree], apply: Callable[[Tree, bytes], Outcome]
) -> None:
    text, what = BROKEN[kind]
    tree = make_tree(BEFORE)
    before = tree_hash(tree)
    outcome = apply(tree, text)
    assert outcome.state == "malformed", outcome
    assert isinstance(outcome.error, PatchMalformed)
    assert f"patch file malformed: {what}" in outcome.note
    assert "user/x.patch" in outcome.note
    assert tree_hash(tree) == before
    assert tree.changes == {}


def test_a_sound_patch_for_another_file_is_not_malformed(
    make_tree: Callable[[Files], Tree], apply: Callable[[Tree, bytes], Outcome]
) -> None:
    outcome = apply(make_tree({"limits.py": b"other = 1\n"}), SOUND)
    assert outcome.state == "does not apply"
    assert isinstance(outcome.error, PatchError)
    assert not isinstance(outcome.error, PatchMalformed)
    assert "limits.py: hunk 1 of 1: line 1 is 'other = 1', wanted 'first = 1'" in outcome.note


def test_a_file_with_crlf_lines_may_be_patched_by_a_diff_that_keeps_them(
    make_tree: Callable[[Files], Tree],
    git_diff: Callable[[Files, Files], bytes],
    apply: Callable[[Tree, bytes], Outcome],
    contents: Callable[[Tree], Files],
) -> None:
    before, after = {"dos.bat": b"a\r\nb\r\nc\r\n"}, {"dos.bat": b"a\r\nB\r\nc\r\n"}
    tree = make_tree(before)
    assert apply(tree, git_diff(before, after)).state == "applied"
    assert contents(tree) == after


def test_a_difference_in_line_endings_alone_is_named(
    make_tree: Callable[[Files], Tree], apply: Callable[[Tree, bytes], Outcome]
) -> None:
    crlf = {name: content.replace(b"\n", b"\r\n") for name, content in BEFORE.items()}
    outcome = apply(make_tree(crlf), SOUND)
    assert outcome.state == "does not apply"
    assert (
        "line 1 differs in its line ending only: 'first = 1\\r', wanted 'first = 1'" in outcome.note
    )


@pytest.mark.parametrize(
    "path", ["../outside.py", "/etc/passwd", "a//b.py", "./x/../../y", ".git/config"]
)
def test_a_path_that_leaves_the_tree_is_refused(path: str) -> None:
    text = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n".encode()
    with pytest.raises(PatchError, match="is not inside the tree"):
        read_diff("user/x.patch", text)


def test_a_mail_with_a_signature_and_a_second_mail_after_it_is_read_whole() -> None:
    mail = b"From 1 Mon Sep 17\nSubject: x\n\n - a list\n - in the text\n---\n limits.py | 2 +-\n\n"
    signature = b"-- \n2.39.5\n\n"
    diff = SOUND[SOUND.index(b"diff") :]
    changes = read_diff(
        "x", mail + diff + signature + mail + diff.replace(b"limits", b"others") + signature
    )
    assert [change.path for change in changes] == ["limits.py", "others.py"]


def test_names_with_spaces_quotes_and_other_alphabets_are_read() -> None:
    text = (
        b'diff --git "a/\\350\\257\\273 \\"me\\".md" "b/\\350\\257\\273 \\"me\\".md"\n'
        b'--- "a/\\350\\257\\273 \\"me\\".md"\n+++ "b/\\350\\257\\273 \\"me\\".md"\n@@ -1 +1 @@\n-a\n+b\n'
        b"diff --git a/two words.md b/two words.md\n--- a/two words.md\t\n+++ b/two words.md\t\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert [change.path for change in read_diff("x", text)] == ['读 "me".md', "two words.md"]
