"""Hunks land where every line matches, or nowhere (case F49)."""

from __future__ import annotations

import pytest

from dih20.patches.diff_file import Hunk, read_diff
from dih20.patches.placing import Placing, Refusal, place


def lines(text: str) -> list[bytes]:
    return [line.encode() + b"\n" for line in text.split()]


def hunks(body: str, *, start: int = 1) -> tuple[Hunk, ...]:
    """Read hunks from lines like ' a', '-b', '+c'; a line '@@' starts the next hunk at the same place."""
    out: list[Hunk] = []
    for part in body.split("@@"):
        rows = [row for row in part.split("\n") if row.strip()]
        old = sum(row[0] in " -" for row in rows)
        new = sum(row[0] in " +" for row in rows)
        text = f"--- a/x\n+++ b/x\n@@ -{start},{old} +{start},{new} @@\n" + "\n".join(rows) + "\n"
        out += read_diff("x", text.encode())[0].hunks
    return tuple(out)


BLOCK = "def,head prepare(q) scale(q) mask(q) return,q"
LOOK_ALIKE = "def,tail prepare(q) scale(q) mask(q) return,q"
CHANGE = """
 def,head
 prepare(q)
-scale(q)
+scale(q,2)
 mask(q)
 return,q
"""


def test_a_block_that_moved_as_a_whole_is_found_and_its_offset_reported() -> None:
    drift = " ".join(f"new{n}" for n in range(21))
    file = lines(f"{LOOK_ALIKE} {drift} {BLOCK}")
    placed = place(file, hunks(CHANGE, start=6), proven=False)
    assert isinstance(placed, Placing)
    assert placed.offsets == (21,)
    assert list(placed.lines) == lines(
        f"{LOOK_ALIKE} {drift} {BLOCK}".replace(
            "def,head prepare(q) scale(q)", "def,head prepare(q) scale(q,2)"
        )
    )


@pytest.mark.parametrize("line", ["def,head", "prepare(q)", "mask(q)", "return,q"])
def test_one_changed_context_line_is_refused_though_a_look_alike_stands_there(line: str) -> None:
    drift = " ".join(f"new{n}" for n in range(21))
    file = lines(f"{LOOK_ALIKE} {drift} {BLOCK.replace(line, 'other')}")
    refusal = place(file, hunks(CHANGE, start=6), proven=False)
    assert isinstance(refusal, Refusal)
    assert refusal.hunk == 1
    assert "wanted" in refusal.why


def test_two_places_that_fit_are_refused_even_when_one_is_where_the_patch_says() -> None:
    file = lines(f"{BLOCK} between {BLOCK}")
    refusal = place(file, hunks(CHANGE, start=1), proven=False)
    assert isinstance(refusal, Refusal)
    assert refusal.why.startswith("ambiguous: it fits at lines 1, 7;")


def test_the_files_own_hash_decides_between_places_that_fit() -> None:
    file = lines(f"{BLOCK} between {BLOCK}")
    placed = place(file, hunks(CHANGE, start=7), proven=True)
    assert isinstance(placed, Placing)
    assert placed.lines[2] == b"scale(q)\n"
    assert placed.lines[8] == b"scale(q,2)\n"


def test_all_hunks_or_none() -> None:
    file = lines("a b c d e f g h i j k l m n")
    both = hunks(" a\n b\n-c\n+C\n d\n@@\n k\n-nothing\n+L\n m\n")
    refusal = place(file, both, proven=False)
    assert isinstance(refusal, Refusal)
    assert refusal.hunk == 2
    assert file == lines("a b c d e f g h i j k l m n")


def test_hunks_that_would_change_their_order_are_refused() -> None:
    file = lines("a b c d e f g h i j")
    swapped = hunks(" g\n-h\n+H\n i\n@@\n a\n-b\n+B\n c\n")
    refusal = place(file, swapped, proven=False)
    assert isinstance(refusal, Refusal)
    assert refusal.hunk == 2
    assert "above the hunk before it" in refusal.why


def test_lines_added_at_the_end_must_still_be_at_the_end() -> None:
    addition = hunks(" a\n b\n+c\n", start=1)
    assert isinstance(place(lines("x a b"), addition, proven=False), Placing)
    refusal = place(lines("a b c"), addition, proven=False)
    assert isinstance(refusal, Refusal), "the same lines would be added a second time"
    assert "not at that end of the file" in refusal.why


def test_lines_added_at_the_top_must_still_be_at_the_top() -> None:
    addition = hunks("+c\n a\n b\n", start=1)
    assert isinstance(place(lines("a b x"), addition, proven=False), Placing)
    assert isinstance(place(lines("c a b"), addition, proven=False), Refusal)


def test_an_insertion_without_context_is_refused_in_a_file_that_may_differ() -> None:
    text = b"--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+b\n"
    bare = read_diff("x", text)[0].hunks
    refusal = place(lines("a c"), bare, proven=False)
    assert isinstance(refusal, Refusal)
    assert "no context lines" in refusal.why
    placed = place(lines("a c"), bare, proven=True)
    assert isinstance(placed, Placing)
    assert list(placed.lines) == lines("a b c")


def test_a_last_line_without_newline_is_not_joined_with_what_follows() -> None:
    text = b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
    change = read_diff("x", text)[0].hunks
    assert isinstance(place(lines("a b"), change, proven=False), Placing)
    assert isinstance(place(lines("a b tail"), change, proven=False), Refusal)


def test_the_refusal_names_the_line_that_differs_and_both_texts() -> None:
    refusal = place(
        lines("p q def,head prepare(q) scale(k) mask(q) return,q"), hunks(CHANGE), proven=False
    )
    assert refusal == Refusal(hunk=1, why="line 5 is 'scale(k)', wanted 'scale(q)'")


def test_a_file_shorter_than_the_hunk_is_said() -> None:
    refusal = place(lines("def,head prepare(q)"), hunks(CHANGE), proven=False)
    assert refusal == Refusal(hunk=1, why="line 3 should be 'scale(q)', and the file has 2 lines")
