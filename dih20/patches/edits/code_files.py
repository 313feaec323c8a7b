"""Our own code of an edit: the function or class in a code file, its body and its text."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from dih20.errors import PatchMalformed
from dih20.patches.edits.symbols import ParsedModule, Symbol, parse


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """A code file: all its statements below the docstring, and its one function or class if it has one."""

    name: str
    module: ParsedModule
    symbol: Symbol | None

    @property
    def body(self) -> list[str]:
        """Give the lines of the body of its function or class, without indentation."""
        assert self.symbol is not None
        first = self.symbol.statements[0]
        start = self.module.span(first).start.line - 1
        start = _with_comments_above(self.module.lines, start, self.symbol.first)
        if isinstance(first, cst.FunctionDef | cst.ClassDef):
            decorators = [self.module.span(each).start.line - 1 for each in first.decorators]
            start = min([start, *decorators])
        return _dedented(self.module.lines[start : self.symbol.last])

    @property
    def definition(self) -> list[str]:
        """Give the lines of its function or class with decorators, without indentation."""
        assert self.symbol is not None
        return _dedented(self.module.lines[self.symbol.first : self.symbol.last])

    @property
    def whole(self) -> list[str]:
        """Give the lines of all its statements below the docstring."""
        first = self.statements[0]
        start = self.module.span(first).start.line - 1
        if self.symbol is not None and first is self.symbol.node:
            start = self.symbol.first
        start = _with_comments_above(self.module.lines, start, 0)
        return _stripped(self.module.lines[start:])

    @property
    def statements(self) -> list[cst.CSTNode]:
        body = list(self.module.module.body)
        return list(body[1:] if self.module.module.get_docstring() is not None else body)


def read_code(folder: Path, name: str, *, wants_symbol: str = "") -> OwnCode:
    """Read a code file; `wants_symbol` is the last part of the name of what it must define."""
    path = folder / name
    try:
        module = parse(path.read_text(encoding="utf-8"))
    except cst.ParserSyntaxError as error:
        raise _malformed(
            folder, name, f"not Python: line {error.raw_line}: {error.message}"
        ) from error
    top = [each for found in module.symbols.values() for each in found if "." not in each.name]
    if wants_symbol:
        named = [each for each in top if each.name == wants_symbol]
        if len(named) != 1:
            raise _malformed(folder, name, f"it does not define {wants_symbol} once")
        return OwnCode(name=name, module=module, symbol=named[0])
    return OwnCode(name=name, module=module, symbol=top[0] if len(top) == 1 else None)


def _with_comments_above(lines: list[str], start: int, floor: int) -> int:
    while start - 1 > floor and lines[start - 1].strip().startswith("#"):
        start -= 1
    return start


def _dedented(lines: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(_stripped(lines))).split("\n")


def _stripped(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _malformed(folder: Path, name: str, what: str) -> PatchMalformed:
    return PatchMalformed(
        found=f"{folder.name}/{name}: {what}",
        expected="Python that defines what its change in edit.yaml says",
        remedy="correct the code file; docs/patches.md has the format",
    )
