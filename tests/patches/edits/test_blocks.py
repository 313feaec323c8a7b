"""Marked blocks: laid in, told apart, and taken out without a trace."""

from __future__ import annotations

import pytest

from dih20.errors import PatchMalformed
from dih20.patches.edits.blocks import Block, BlockConflict, read_marked, render

TEXT = "a = 1\nb = 2\nc = 3\n"


def block(at: int, removed: int, *lines: str, edit: str = "P01-x") -> Block:
    return Block(at=at, removed=removed, edit=edit, what="w", indent="", lines=lines)


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n")], ids=["LF", "CRLF"])
@pytest.mark.parametrize(
    "blocks",
    [
        [block(1, 0, "x = 1")],
        [block(1, 1, "b = 20")],
        [block(0, 3, "d = 1")],
        [block(3, 0, "e = 1")],
        [block(1, 0, "x = 1"), block(1, 1, "b = 20", edit="P02-y"), block(2, 0, "", "z = 1")],
    ],
)
def test_blocks_come_out_without_a_trace(text: str, blocks: list[Block]) -> None:
    marked = render(text, blocks)
    assert marked != text
    read = read_marked(marked, "f.py")
    assert read.base == text
    assert sorted(read.blocks) == sorted(blocks)
    assert render(read.base, reversed(read.blocks)) == marked
    assert ("\r\n" in marked) == ("\r\n" in text)
    assert marked.count("\r\n") in (0, marked.count("\n"))


def test_a_block_shows_what_it_stands_for() -> None:
    assert render(TEXT, [block(1, 1, "b = 20")]) == (
        "a = 1\n# >>> dih20 P01-x w\nb = 20\n#|b = 2\n# <<< dih20 P01-x\nc = 3\n"
    )


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ([block(0, 2, "x"), block(1, 1, "y", edit="P02-y")], "P02-y .* another edit took"),
        ([block(0, 2, "x"), block(1, 0, "y", edit="P02-y")], "P02-y .* another edit took"),
    ],
)
def test_two_edits_of_the_same_lines_are_a_conflict(blocks: list[Block], why: str) -> None:
    with pytest.raises(BlockConflict, match=why):
        render(TEXT, blocks)


def test_an_end_without_newline_is_not_edited() -> None:
    with pytest.raises(BlockConflict, match="no newline"):
        render("a = 1\nb = 2", [block(1, 1, "b = 20")])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# >>> dih20 P01-x w\na = 1\n", "f.py:3: .* has no end"),
        ("a = 1\n# <<< dih20 P01-x\n", "f.py:2: .* without a beginning"),
        ("# >>> dih20 P01-x w\n# >>> dih20 P02-y w\n", "f.py:2: .* inside another"),
    ],
)
def test_a_marker_without_its_partner_is_named(text: str, why: str) -> None:
    with pytest.raises(PatchMalformed, match=why):
        read_marked(text, "f.py")
