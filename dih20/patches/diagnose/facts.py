"""What a tree's functions do, as plain facts: comparisons, calls, assignments, products, numbers.

Only files that differ from the locked release are read in full, when the release is in the cache:
what upstream wrote for SM100 is no sign of a port's fault.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import libcst as cst

from dih20.errors import FetchError, LockError
from dih20.patches.edits.symbols import ParsedModule, parse

Verdict = Literal["found", "not found", "not in this tree"]
_SKIPPED = {".git", "__pycache__", "tests", "build", "dist", ".venv"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call: line, what is called, and its keywords as text."""

    line: int
    function: str
    keywords: dict[str, str]
    text: str


@dataclass(kw_only=True)
class Function:
    """One function or method, or the code of a module outside of them (named `<module>`)."""

    file: str
    line: int
    name: str
    defaults: dict[str, str] = field(default_factory=dict)
    comparisons: list[tuple[int, str, str, str]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    assignments: list[tuple[int, str, str]] = field(default_factory=list)
    products: list[tuple[int, str, str]] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def at(self, line: int) -> str:
        return f"{self.file}:{line} ({self.name})"

    def texts(self) -> Iterator[str]:
        """Give its calls, assignments and products as text."""
        yield from (call.text for call in self.calls)
        yield from (f"{target} = {value}" for _, target, value in self.assignments)
        yield from (f"{left} * {right}" for _, left, right in self.products)


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """Functions of the files that a port changed or added, and of named upstream files."""

    root: Path
    changed: list[str]
    functions: list[Function]
    unreadable: list[str]

    def named(self, last: str) -> list[Function]:
        """Give functions by the last part of their name."""
        return [each for each in self.functions if each.name.rsplit(".", 1)[-1] == last]

    def of(self, file: str, name: str) -> Function | None:
        """Give one function of a file, read from the tree even when the file is upstream's."""
        found = [each for each in self.functions if (each.file, each.name) == (file, name)]
        if not found and (self.root / file).is_file() and file not in self.changed:
            text = (self.root / file).read_text(encoding="utf-8")
            found = [each for each in functions_of(file, text) if each.name == name]
        return found[0] if found else None


def read_tree(root: Path) -> TreeFacts:
    """Read the files of a tree that differ from the locked release."""
    released = _released()
    changed: list[str] = []
    functions: list[Function] = []
    unreadable: list[str] = []
    for path in _python_files(root):
        relative = str(path.relative_to(root))
        content = path.read_bytes()
        if released.get(relative) == hashlib.sha256(content).hexdigest():
            continue
        changed.append(relative)
        try:
            functions += functions_of(relative, content.decode("utf-8"))
        except (cst.ParserSyntaxError, UnicodeDecodeError):
            unreadable.append(relative)
    return TreeFacts(root=root, changed=changed, functions=functions, unreadable=unreadable)


@lru_cache(maxsize=128)
def functions_of(file: str, text: str) -> tuple[Function, ...]:
    """Give the facts of each function of a module."""
    module = parse(text)
    reader = _Reader(file, module)
    module.module.visit(reader)
    return tuple(reader.functions)


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(files):
            path = Path(folder, name)
            if path.suffix == ".py" and not path.is_symlink():
                yield path


def _released() -> dict[str, str]:
    """Give path -> sha256 of the locked release; empty when it is not in the cache."""
    from dih20.fetch import cached
    from dih20.lock import Lock

    try:
        file = Lock.load().source("deepinfer").file
        archive = cached(file) if file is not None else None
    except (FetchError, LockError):
        return {}
    if archive is None:
        return {}
    hashes: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                path = member.name.split("/", 1)[1]
                hashes[path] = hashlib.sha256(content.read()).hexdigest()
    return hashes


class _Reader(cst.CSTVisitor):
    def __init__(self, file: str, module: ParsedModule) -> None:
        super().__init__()
        self.module = module
        self.file = file
        self.names: list[str] = []
        self.functions = [Function(file=file, line=1, name="<module>")]
        self._open = [self.functions[0]]

    def _line(self, node: cst.CSTNode) -> int:
        return self.module.span(node).start.line

    def _code(self, node: cst.CSTNode) -> str:
        return " ".join(self.module.module.code_for_node(node).split())

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.names.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.names.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.names.append(node.name.value)
        params = (*node.params.params, *node.params.kwonly_params)
        defaults = {p.name.value: self._code(p.default) if p.default else "" for p in params}
        function = Function(
            file=self.file, line=self._line(node), name=".".join(self.names), defaults=defaults
        )
        self.functions.append(function)
        self._open.append(function)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.names.pop()
        self._open.pop()

    def visit_Comparison(self, node: cst.Comparison) -> None:
        left = self._code(node.left)
        for target in node.comparisons:
            operator = self._code(target.operator).strip()
            right = self._code(target.comparator)
            self._each("comparisons", (self._line(node), left, operator, right))

    def visit_Call(self, node: cst.Call) -> None:
        keywords = {a.keyword.value: self._code(a.value) for a in node.args if a.keyword}
        call = Call(
            line=self._line(node),
            function=self._code(node.func),
            keywords=keywords,
            text=self._code(node),
        )
        self._each("calls", call)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            value = self._code(node.value)
            self._each("assignments", (self._line(node), self._code(target.target), value))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            fact = (self._line(node), self._code(node.target), self._code(node.value))
            self._each("assignments", fact)

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        if isinstance(node.operator, cst.Multiply):
            fact = (self._line(node), self._code(node.left), self._code(node.right))
            self._each("products", fact)

    def visit_Integer(self, node: cst.Integer) -> None:
        for function in self._open[-1:]:
            function.numbers.add(node.evaluated_value)

    def visit_Name(self, node: cst.Name) -> None:
        for function in self._open:
            function.names.add(node.value)

    def _each(self, kind: str, fact: object) -> None:
        """Facts of a nested function count for the functions around it too: kernels are closures."""
        for function in self._open[1:] or self._open:
            getattr(function, kind).append(fact)
