"""Lay an edit over a tree in memory: all its changes, or none with what to do about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import libcst as cst

from dih20.errors import PatchError, PatchMalformed
from dih20.patches.edits.blocks import BlockConflict, MarkedText, read_marked, render
from dih20.patches.edits.drift import look_elsewhere
from dih20.patches.edits.evaluate import Judge, Part
from dih20.patches.edits.model import Edit
from dih20.patches.edits.symbols import ParsedModule, parse
from dih20.patches.tree import Entry, Tree


def lay_edit(tree: Tree, edit: Edit, folder: Path) -> list[Part]:
    """Give what became of each change; the tree changes only when every part is well."""
    judge = Judge(
        edit=edit,
        folder=folder,
        elsewhere=lambda change, module: look_elsewhere(tree.root, edit.id, change, module),
    )
    if gone := list(_done_upstream(tree, edit)):
        return gone
    parts: list[Part] = []
    changed: dict[str, Entry] = {}
    for path in dict.fromkeys(change.file for change in edit.changes):
        changes = [change for change in edit.changes if change.file == path]
        entry = tree.read(path)
        if entry is None:
            parts += [judge.elsewhere(change, None) for change in changes]
            continue
        marked, module = _module(entry, path)
        found = [judge.judge(change, module) for change in changes]
        if all(part.ok for part in found):
            found, text = _laid(edit, path, marked, found)
            if text is not None:
                changed[path] = replace(entry, content=text.encode())
        parts += found
    if all(part.ok for part in parts):
        for path, entry in changed.items():
            tree.put(path, entry)
    return parts


def undo_edits(tree: Tree) -> list[str]:
    """Take every block of every edit out of a tree in memory; give the files that had some."""
    undone = []
    for path, _, _ in list(tree.files()):
        entry = tree.read(path) if path.endswith(".py") else None
        if entry is None or b"dih20 " not in entry.content:
            continue
        marked = read_marked(_decoded(entry, path), path)
        if marked.blocks:
            tree.put(path, replace(entry, content=marked.base.encode()))
            undone.append(path)
    return undone


def _laid(
    edit: Edit, path: str, marked: MarkedText, found: list[Part]
) -> tuple[list[Part], str | None]:
    """Lay the blocks of one file beside those of other edits; None when nothing changes."""
    blocks = [block for part in found for block in part.blocks]
    mine = sorted(block for block in marked.blocks if block.edit == edit.id)
    if mine and mine == sorted(blocks):
        return [
            replace(part, state="already") if part.state == "applied" else part for part in found
        ], None
    if mine:
        raise PatchError(
            found=f"{path} carries another version of {edit.id}",
            expected="the edit as it is in patches/sm90, or none of it",
            remedy="run `./inv patch --undo --tree DIR` there, then apply again",
        )
    if not blocks:
        return found, None
    others = [block for block in marked.blocks if block.edit != edit.id]
    try:
        text = render(marked.base, [*others, *blocks])
    except BlockConflict as conflict:
        raise PatchError(
            found=f"{edit.id} cannot be laid into {path}: {conflict}",
            expected="edits that touch different lines",
            remedy="join the two edits, or narrow one of them",
        ) from conflict
    _check_python(edit, path, text)
    assert read_marked(text, path).base == marked.base, f"{path} would not come back from {edit.id}"
    return found, text


def _check_python(edit: Edit, path: str, text: str) -> None:
    try:
        cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise PatchMalformed(
            found=f"{path} is not Python any more with {edit.id}: line {error.raw_line}: {error.message}",
            expected="code files and expressions that fit where they go",
            remedy=f"correct patches/sm90/{edit.id}; nothing was changed",
        ) from error


def _done_upstream(tree: Tree, edit: Edit) -> Iterator[Part]:
    """Give a part for each symbol by which edit.yaml knows that upstream does it all itself."""
    for sign in edit.upstream_has:
        entry = tree.read(sign.file)
        if entry is None:
            continue
        _, module = _module(entry, sign.file)
        if sign.symbol in module.symbols:
            yield Part(
                place=f"{sign.file}: {sign.symbol}",
                state="already upstream",
                note="upstream has this symbol, so the edit has nothing to do",
            )


def _module(entry: Entry, path: str) -> tuple[MarkedText, ParsedModule]:
    marked = read_marked(_decoded(entry, path), path)
    try:
        return marked, parse(marked.base)
    except cst.ParserSyntaxError as error:
        raise PatchError(
            found=f"{path} in the tree is not Python: line {error.raw_line}: {error.message}",
            expected="a module that LibCST can read",
            remedy="mend the file, then run the command again",
        ) from error


def _decoded(entry: Entry, path: str) -> str:
    try:
        return entry.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(
            found=f"{path} in the tree is not UTF-8: {error.reason} at byte {error.start}",
            expected="source text in UTF-8",
            remedy="mend the file, then run the command again",
        ) from error
