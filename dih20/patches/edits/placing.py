"""Turn one change into blocks over a module: where the lines go, and which lines they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from dih20.patches.edits.blocks import Block
from dih20.patches.edits.code_files import OwnCode
from dih20.patches.edits.model import Change
from dih20.patches.edits.normal_form import HOLE, normal_form
from dih20.patches.edits.symbols import ParsedModule, Symbol


@dataclass(frozen=True, kw_only=True)
class Splice:
    """New text for a stretch of a statement: positions count lines from 0, columns in characters."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    statement: tuple[int, int]


def entry_block(module: ParsedModule, symbol: Symbol, code: OwnCode, edit: str, what: str) -> Block:
    """Put our body before the first statement of a function or class, below its docstring."""
    first = symbol.statements[0] if symbol.statements else None
    if first is None:
        at = symbol.last
        indent = _indent_of(module, symbol.first) + "    "
    else:
        at = module.span(first).start.line - 1
        if isinstance(first, cst.FunctionDef | cst.ClassDef):
            at = min([at, *(module.span(each).start.line - 1 for each in first.decorators)])
        at -= len(getattr(first, "leading_lines", ()))
        indent = module.lines[module.span(first).start.line - 1][: module.span(first).start.column]
    return Block(
        at=at, removed=0, edit=edit, what=what, indent=indent, lines=_indented(code.body, indent)
    )


def replacing_block(
    module: ParsedModule, symbol: Symbol, code: OwnCode, edit: str, what: str
) -> Block:
    """Put our definition in place of a function or method, decorators included."""
    indent = _indent_of(module, symbol.first)
    return Block(
        at=symbol.first,
        removed=symbol.last - symbol.first,
        edit=edit,
        what=what,
        indent=indent,
        lines=_indented(code.definition, indent),
    )


def following_block(
    module: ParsedModule, symbol: Symbol, code: OwnCode, edit: str, what: str
) -> Block:
    """Put our definitions below a symbol."""
    indent = _indent_of(module, symbol.first)
    lines = ["", *([""] if not indent else []), *_indented(code.whole, indent)]
    return Block(at=symbol.last, removed=0, edit=edit, what=what, indent=indent, lines=tuple(lines))


def import_block(
    module: ParsedModule, statement: cst.SimpleStatementLine, code: OwnCode, edit: str, what: str
) -> Block:
    """Put our statements in place of an import of one name."""
    span = module.span(statement)
    indent = _indent_of(module, span.start.line - 1)
    return Block(
        at=span.start.line - 1,
        removed=span.end.line - span.start.line + 1,
        edit=edit,
        what=what,
        indent=indent,
        lines=_indented(code.whole, indent),
    )


def spliced_blocks(
    module: ParsedModule, splices: list[Splice], edit: str, what: str
) -> Iterator[Block]:
    """Rewrite the statements that splices touch, each statement once."""
    for first, last in sorted({splice.statement for splice in splices}):
        lines = module.lines[first:last]
        inside = [splice for splice in splices if splice.statement == (first, last)]
        for splice in sorted(inside, key=lambda each: each.start, reverse=True):
            (row, column), (end_row, end_column) = splice.start, splice.end
            head, tail = lines[row - first][:column], lines[end_row - first][end_column:]
            lines[row - first : end_row - first + 1] = (head + splice.text + tail).split("\n")
        indent = _indent_of(module, first)
        yield Block(
            at=first, removed=last - first, edit=edit, what=what, indent=indent, lines=tuple(lines)
        )


def splices_of(module: ParsedModule, symbol: Symbol, change: Change) -> list[Splice]:
    """Find the sites of a wrap or keyword change in a symbol, nested definitions left out."""
    finder = _Sites(module, symbol, change)
    symbol.node.body.visit(finder)
    return finder.found


def values_of(
    module: ParsedModule, symbol: Symbol, change: Change
) -> list[cst.BaseExpression | None]:
    """Give the value at each site; None where a call has no such keyword yet."""
    finder = _Sites(module, symbol, change)
    symbol.node.body.visit(finder)
    return finder.values


class _Sites(cst.CSTVisitor):
    """Collect splices; a statement on its own lines, or a call's own lines in a block's header."""

    def __init__(self, module: ParsedModule, symbol: Symbol, change: Change) -> None:
        super().__init__()
        self.module = module
        self.change = change
        self.found: list[Splice] = []
        self.values: list[cst.BaseExpression | None] = []
        self._wanted = normal_form(cst.parse_expression(change.target or change.callee or "None"))
        self._statements: list[tuple[int, int]] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return self.change.action == "set-keyword"

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return self.change.action == "set-keyword"

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        span = self.module.span(node)
        self._statements.append((span.start.line - 1, span.end.line))

    def leave_SimpleStatementLine(self, original_node: cst.SimpleStatementLine) -> None:
        self._statements.pop()

    def visit_Return(self, node: cst.Return) -> None:
        if self.change.action == "wrap-return" and node.value is not None:
            self._wrap(node, node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        targets = [normal_form(target.target) for target in node.targets]
        if self.change.action == "wrap-assignment" and targets == [self._wanted]:
            self._wrap(node, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        wanted = self.change.action == "wrap-assignment" and normal_form(node.target)
        if node.value is not None and wanted == self._wanted:
            self._wrap(node, node.value)

    def visit_Call(self, node: cst.Call) -> None:
        if self.change.action != "set-keyword" or normal_form(node.func) != self._wanted:
            return
        for argument in node.args:
            if argument.keyword is not None and argument.keyword.value == self.change.keyword:
                self._wrap(node, argument.value)
                return
        self.values.append(None)
        end = self.module.span(node).end
        inside = (end.line - 1, end.column - 1)
        comma = node.args and not isinstance(node.args[-1].comma, cst.Comma)
        text = f"{', ' if comma else ''}{self.change.keyword}={self.change.expression}"
        self._add(node, inside, inside, text)

    def _wrap(self, node: cst.CSTNode, value: cst.BaseExpression) -> None:
        self.values.append(value)
        span = self.module.span(value)
        start, end = (span.start.line - 1, span.start.column), (span.end.line - 1, span.end.column)
        old = self.module.lines[start[0] : end[0] + 1]
        old[-1] = old[-1][: end[1]]
        old[0] = old[0][start[1] :]
        self._add(
            node, start, end, self.change.expression.replace(HOLE, "(" + "\n".join(old) + ")")
        )

    def _add(
        self, node: cst.CSTNode, start: tuple[int, int], end: tuple[int, int], text: str
    ) -> None:
        if self._statements:
            statement = self._statements[-1]
        else:
            span = self.module.span(node)
            statement = (span.start.line - 1, span.end.line)
        self.found.append(Splice(start=start, end=end, text=text, statement=statement))


def _indent_of(module: ParsedModule, line: int) -> str:
    text = module.lines[line]
    return text[: len(text) - len(text.lstrip())]


def _indented(lines: list[str], indent: str) -> tuple[str, ...]:
    return tuple(indent + line if line.strip() else "" for line in lines)
