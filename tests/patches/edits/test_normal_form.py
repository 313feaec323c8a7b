"""What a fingerprint sees: the code, and not how it is written."""

from __future__ import annotations

import pytest

from dih20.patches.edits.symbols import parse

PLAIN = '''\
def scale(rows, *, width=32):
    """What it gives."""
    if rows:
        total = rows * (width + 1)
        return {"width": width, "total": total}
    return None
'''


def fingerprint(text: str) -> str:
    (symbols,) = parse(text).symbols.values()
    return symbols[0].fingerprint


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("a comment", "    if rows:", "    # why\n    if rows:  # because\n"),
        ("another docstring", "What it gives.", "Something else entirely."),
        ("no docstring", '    """What it gives."""\n', ""),
        ("blank lines", "        return {", "\n\n        return {"),
        ("other quotes", '{"width": width, "total": total}', "{'width': width, 'total': total}"),
        ("brackets around", "return None", "return (None)"),
        ("a trailing comma", '"total": total}', '"total": total,}'),
        ("several lines", '{"width": width, ', '{\n            "width": width,\n            '),
        ("spaces", "width=32", "width = 32"),
        ("a semicolon", "    return None\n", "    return None;\n"),
        ("another name", "def scale", "def scale_of"),
        ("deeper indentation", PLAIN, PLAIN.replace("    ", "      ")),
    ],
)
def test_formatting_comments_and_the_name_do_not_count(what: str, old: str, new: str) -> None:
    assert old in PLAIN
    assert fingerprint(PLAIN.replace(old, new)) == fingerprint(PLAIN), what


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("a default", "width=32", "width=128"),
        ("a keyword more", "width=32", "width=32, deep=False"),
        ("an annotation", "rows,", "rows: int,"),
        ("an operator", "width + 1", "width - 1"),
        ("a string", '"total"', '"sum"'),
        ("brackets that group", "rows * (width + 1)", "(rows * width) + 1"),
        ("a decorator", "def scale", "@cache\ndef scale"),
        ("async", "def scale", "async def scale"),
        ("a positional more", "rows, *", "rows, depth, *"),
        ("no keyword-only mark", "rows, *, width", "rows, width"),
        ("another order", "    return None\n", "    rows = 0\n    return None\n"),
    ],
)
def test_everything_else_counts(what: str, old: str, new: str) -> None:
    assert old in PLAIN
    assert fingerprint(PLAIN.replace(old, new)) != fingerprint(PLAIN), what


def test_a_self_documenting_f_string_is_another_string() -> None:
    plain = 'def f(x):\n    return f"{x}"\n'
    assert fingerprint(plain.replace("{x}", "{x=}")) != fingerprint(plain)
    assert fingerprint(plain.replace("{x}", "{x!r}")) != fingerprint(plain)


def test_newer_grammar_is_read_on_every_interpreter() -> None:
    generic = "def first[T](items: list[T]) -> T:\n    return items[0]\n"
    assert fingerprint(generic) != fingerprint(generic.replace("[T]", "[T: int]", 1))


def test_fingerprints_of_a_fixed_text_are_fixed() -> None:
    assert fingerprint(PLAIN) == "8ace933a2d638010"
