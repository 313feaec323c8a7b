"""A module's symbols with the lines they stand in, read with LibCST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from dih20.patches.edits.normal_form import fingerprint, is_docstring


@dataclass(frozen=True)
class Symbol:
    """A function, method or class: dotted name, lines [first, last) with decorators, from 0."""

    name: str
    node: cst.FunctionDef | cst.ClassDef
    first: int
    last: int

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.node)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Give the names of the parameters in their order, with * and ** where they stand."""
        if isinstance(self.node, cst.ClassDef):
            return ()
        params = self.node.params
        names = [p.name.value for p in (*params.posonly_params, *params.params)]
        if isinstance(params.star_arg, cst.Param):
            names.append(f"*{params.star_arg.name.value}")
        names += [p.name.value for p in params.kwonly_params]
        if params.star_kwarg:
            names.append(f"**{params.star_kwarg.name.value}")
        return tuple(names)

    @property
    def statements(self) -> list[cst.CSTNode]:
        """Give the body's statements without the docstring."""
        body = list(self.node.body.body)
        if body and isinstance(body[0], cst.SimpleStatementLine) and is_docstring(body[0].body[0]):
            body = body[1:]
        return list(body)


@dataclass(frozen=True)
class ParsedModule:
    """A module's tree, the position of each node, and its symbols by dotted name."""

    text: str
    module: cst.Module
    positions: Mapping[cst.CSTNode, CodeRange]
    symbols: dict[str, list[Symbol]] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """Give the lines without their ends."""
        return [line.rstrip("\r") for line in self.text.split("\n")]

    def span(self, node: cst.CSTNode) -> CodeRange:
        return self.positions[node]


@lru_cache(maxsize=256)
def parse(text: str) -> ParsedModule:
    """Read a module; libcst.ParserSyntaxError when it is not Python."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    parsed = ParsedModule(
        text=text, module=wrapper.module, positions=wrapper.resolve(PositionProvider)
    )
    wrapper.module.visit(_Collector(parsed))
    return parsed


class _Collector(cst.CSTVisitor):
    def __init__(self, parsed: ParsedModule) -> None:
        super().__init__()
        self.parsed = parsed
        self.names: list[str] = []

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> None:
        self.names.append(node.name.value)
        span = self.parsed.span(node)
        starts = [self.parsed.span(each).start.line for each in node.decorators]
        first = min([span.start.line, *starts]) - 1
        symbol = Symbol(name=".".join(self.names), node=node, first=first, last=span.end.line)
        self.parsed.symbols.setdefault(symbol.name, []).append(symbol)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._enter(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.names.pop()

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._enter(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.names.pop()
