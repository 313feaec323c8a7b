"""Where a symbol went that is not in its place any more: renamed, moved, or gone."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import libcst as cst

from dih20.patches.edits.blocks import read_marked
from dih20.patches.edits.evaluate import Part
from dih20.patches.edits.model import Change
from dih20.patches.edits.symbols import ParsedModule, parse

_SKIPPED = {".git", "__pycache__", "build", "dist", "node_modules", ".venv"}


def look_elsewhere(root: Path, edit: str, change: Change, module: ParsedModule | None) -> Part:
    """Say what became of a symbol; `module` is its file, or None when there is no such file."""
    yaml = f"patches/sm90/{edit}/edit.yaml"
    if module is not None and (renamed := _same_code(change, module)):
        note = (
            f"it is named {renamed[0]} now, with the same code: set symbol: {renamed[0]} in {yaml}, "
            f"and search our code files for {change.symbol.rsplit('.', 1)[-1]}"
        )
        if len(renamed) > 1:
            note = (
                f"{len(renamed)} symbols have its code ({', '.join(renamed)}): choose one in {yaml}"
            )
            return Part(place=change.place, state="ambiguous", note=note)
        return Part(place=change.place, state="moved", note=note)
    others: list[str] = []
    for path, other in _candidates(root, change):
        if same := _same_code(change, other):
            note = f"it stands in {path} now, with the same code: set file: {path}"
            note += "" if same[0] == change.symbol else f" and symbol: {same[0]}"
            return Part(place=change.place, state="moved", note=f"{note} in {yaml}")
        others += [
            f"{path}: {name}" for name in other.symbols if _last(name) == _last(change.symbol)
        ]
    note = "no such file" if module is None else "no such symbol in the file"
    if others:
        note += f"; of that name, with other code: {', '.join(others[:4])}"
    near = difflib.get_close_matches(change.symbol, list(module.symbols) if module else [], n=3)
    if near:
        note += f"; similar names there: {', '.join(near)}"
    note += f"; find what does its work now and make the edit again ({yaml}), or take it out of the series"
    return Part(place=change.place, state="missing", note=note)


def _same_code(change: Change, module: ParsedModule) -> list[str]:
    return [
        symbol.name
        for found in module.symbols.values()
        for symbol in found
        if symbol.fingerprint == change.fingerprint
    ]


def _candidates(root: Path, change: Change) -> Iterator[tuple[str, ParsedModule]]:
    """Give the other modules of the tree in which a definition has the symbol's last name."""
    defined = re.compile(
        rf"^\s*(?:async\s+)?(?:def|class)\s+{re.escape(_last(change.symbol))}\b", re.M
    )
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(files):
            path = Path(folder, name)
            relative = str(path.relative_to(root))
            if path.suffix != ".py" or relative == change.file or path.is_symlink():
                continue
            text = path.read_bytes().decode("utf-8", errors="replace")
            if defined.search(text) is None:
                continue
            try:
                yield relative, parse(read_marked(text, relative).base)
            except cst.ParserSyntaxError:  # a file of another kind, or broken: not where it went
                continue


def _last(symbol: str) -> str:
    return symbol.rsplit(".", 1)[-1]
