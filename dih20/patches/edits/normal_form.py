"""The normal form of a piece of Python, and its fingerprint: what counts, and what does not.

The rule: the LibCST tree as nested tuples of node names and values, without white space, comments,
docstrings, brackets around expressions, trailing commas, semicolons and the name of the symbol
itself. Strings count by their value, not by their quotes; a one-line suite equals an indented one.
Annotations, defaults, decorators and everything else count. A fingerprint is the first 16 digits
of the sha256 of that. So a symbol that was only moved, renamed or formatted keeps its fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import libcst as cst

Form = Any
HOLE = "__value__"
_FORMATTING = {
    "comma",
    "comment",
    "default_indent",
    "default_newline",
    "encoding",
    "footer",
    "has_trailing_newline",
    "header",
    "indent",
    "lbrace",
    "lbracket",
    "leading_lines",
    "lines_after_decorators",
    "lines_after_module_docstring",
    "lpar",
    "newline",
    "rbrace",
    "rbracket",
    "rpar",
    "semicolon",
    "trailing_whitespace",
}


def fingerprint(node: cst.CSTNode) -> str:
    """Give 16 hexadecimal digits that change when the code does, and only then."""
    return hashlib.sha256(repr(symbol_form(node)).encode()).hexdigest()[:16]


def symbol_form(node: cst.CSTNode) -> Form:
    """Give the normal form of a function or class without its own name."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return normal_form(node.with_changes(name=cst.Name("_")))
    return normal_form(node)


def normal_form(node: cst.CSTNode) -> Form:
    """Give the normal form of a node: (type, (field, value) ...)."""
    if isinstance(node, cst.SimpleString):
        return ("String", repr(node.evaluated_value))
    if isinstance(node, cst.BaseSuite | cst.Module):
        return ("Block", *statement_forms(node.body, with_docstring=False))
    parts: list[Form] = [type(node).__name__]
    for field in fields(node):
        if _is_formatting(node, field.name):
            continue
        value = getattr(node, field.name)
        if value is None or isinstance(value, cst.MaybeSentinel):
            continue
        parts.append((field.name, _value(value)))
    return tuple(parts)


def statement_forms(body: Sequence[cst.CSTNode], *, with_docstring: bool) -> Iterator[Form]:
    """Give the forms of statements, those that share a line one by one."""
    small = [
        inner
        for statement in body
        for inner in (
            statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
        )
    ]
    for number, statement in enumerate(small):
        if number == 0 and not with_docstring and is_docstring(statement):
            continue
        yield normal_form(statement)


def is_docstring(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.Expr) and isinstance(
        statement.value, cst.SimpleString | cst.ConcatenatedString
    )


def matches(pattern: Form, form: Form) -> bool:
    """Say whether two forms are equal, where a name `__value__` in the pattern stands for anything."""
    if isinstance(pattern, tuple) and pattern == ("Name", ("value", repr(HOLE))):
        return True
    if isinstance(pattern, tuple) and isinstance(form, tuple):
        return len(pattern) == len(form) and all(map(matches, pattern, form))
    return bool(pattern == form)


def _is_formatting(node: cst.CSTNode, name: str) -> bool:
    if name == "equal":  # f"{x=}" prints more than f"{x}"; elsewhere it is only a sign
        return not isinstance(node, cst.FormattedStringExpression)
    return "whitespace" in name or name in _FORMATTING


def _value(value: Any) -> Form:
    if isinstance(value, cst.CSTNode):
        return normal_form(value)
    if isinstance(value, list | tuple):
        return tuple(_value(item) for item in value)
    return repr(value)
