"""Marked blocks: what an edit puts into a file, with the lines it took out, so that it can be undone.

    # >>> dih20 P05-dense-requant insert-branch set_ue8m0_sf
    if PLATFORM.is_sm90:
        ...
    # <<< dih20 P05-dense-requant

Lines that a block stands for are kept in it behind `#|`. Taking all blocks out gives the file's
bytes as they were, from its text alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dih20.errors import PatchMalformed

BEGIN = "# >>> dih20 "
END = "# <<< dih20 "
KEPT = "#|"
TEST_ONLY = "TEST-ONLY"


@dataclass(frozen=True, kw_only=True, order=True)
class Block:
    """New lines before line `at` of the unedited file (from 0), in place of `removed` lines."""

    at: int
    removed: int
    edit: str
    what: str
    indent: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MarkedText:
    """A file without its blocks, and the blocks."""

    base: str
    blocks: tuple[Block, ...]


class BlockConflict(Exception):
    """Two blocks want the same lines; the message names the edits."""


def read_marked(text: str, where: str) -> MarkedText:
    """Take the blocks out of a text; PatchMalformed when a marker has no partner."""
    base: list[str] = []
    blocks: list[Block] = []
    inside: list[str] | None = None
    head, kept, at = "", list[str](), 0
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith(BEGIN):
            if inside is not None:
                raise _unbalanced(where, number, "begins inside another")
            inside, kept, at, head = [], [], len(base), line.rstrip("\r")
        elif bare.startswith(END):
            if inside is None:
                raise _unbalanced(where, number, "ends without a beginning")
            blocks.append(_block(head, inside, at, len(kept)))
            base += kept
            inside = None
        elif inside is None:
            base.append(line)
        elif bare.startswith(KEPT):
            kept.append(line.split(KEPT, 1)[1])
        else:
            inside.append(line.rstrip("\r"))
    if inside is not None:
        raise _unbalanced(where, text.count("\n") + 1, "has no end")
    return MarkedText(base="\n".join(base), blocks=tuple(blocks))


def render(base: str, blocks: Iterable[Block]) -> str:
    """Lay blocks into a text; the order in which they are given does not count."""
    ordered = sorted(set(blocks))
    lines = base.split("\n")
    carriage = "\r" if len(lines) > 1 and lines[0].endswith("\r") else ""
    out: list[str] = []
    done = 0
    for block in ordered:
        if block.at < done:
            raise BlockConflict(f"{block.edit} ({block.what}) touches lines that another edit took")
        if block.at >= len(lines) or block.at + block.removed >= len(lines):
            raise BlockConflict("the last line has no newline")
        out += lines[done : block.at]
        taken = lines[block.at : block.at + block.removed]
        out.append(f"{block.indent}{BEGIN}{block.edit} {block.what}{carriage}")
        out += [line + carriage for line in block.lines]
        out += [f"{block.indent}{KEPT}{line}" for line in taken]
        out.append(f"{block.indent}{END}{block.edit}{carriage}")
        done = block.at + block.removed
    return "\n".join(out + lines[done:])


def _block(head: str, lines: list[str], at: int, removed: int) -> Block:
    indent = head[: len(head) - len(head.lstrip())]
    edit, _, what = head.strip().removeprefix(BEGIN).partition(" ")
    return Block(at=at, removed=removed, edit=edit, what=what, indent=indent, lines=tuple(lines))


def _unbalanced(where: str, line: int, what: str) -> PatchMalformed:
    return PatchMalformed(
        found=f"{where}:{line}: a block of an edit {what}",
        expected=f"`{BEGIN}...` and `{END}...` in pairs, as `./inv patch` writes them",
        remedy="put the markers right by hand, or take the file from upstream again",
    )
