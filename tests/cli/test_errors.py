"""The error tree: drawn as it is, and one exit code for each way to fail."""

from __future__ import annotations

import re

import pytest

from dih20 import errors
from dih20.errors import ToolError

_DRAWN = re.compile(r"^    ([│├└─ ]*)([A-Z]\w+) +(\d+)(   .+)?$", flags=re.MULTILINE)

Drawn = dict[str, tuple[str, int, str]]


def drawn_tree(text: str) -> Drawn:
    """Read the drawing: name -> (parent, exit code, what it is for)."""
    above: list[str] = []
    tree = {}
    for match in _DRAWN.finditer(text):
        depth = len(match[1]) // 4
        above[depth:] = [match[2]]
        tree[match[2]] = (
            above[depth - 1] if depth else "",
            int(match[3]),
            (match[4] or "").strip(),
        )
    return tree


def all_errors() -> list[type[ToolError]]:
    found = [ToolError]
    for kind in found:
        found += [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
    return found


def disagreements(drawn: Drawn) -> list[str]:
    """Say where the drawing and the classes differ, and which exit codes are not one of a kind."""
    kinds = {kind.__name__: kind for kind in all_errors()}
    said = [f"{name} is drawn, and there is no such class" for name in drawn.keys() - kinds.keys()]
    for name, kind in kinds.items():
        parent = kind.__mro__[1].__name__ if kind is not ToolError else ""
        if name not in drawn:
            said.append(f"{name} is not drawn")
        elif drawn[name][:2] != (parent, kind.exit_code):
            said.append(f"{name} is {parent}, {kind.exit_code} and drawn as {drawn[name][:2]}")
        elif kind is not ToolError and not drawn[name][2]:
            said.append(f"{name} is drawn without what it is for")
    codes = [code for _, code, _ in drawn.values()] + [errors.INTERNAL_FAULT, errors.INTERRUPTED]
    said += [f"exit code {code} is used twice" for code in set(codes) if codes.count(code) > 1]
    return said


def test_every_error_is_drawn_in_the_tree_with_an_exit_code_of_its_own() -> None:
    assert errors.__doc__ is not None
    drawn = drawn_tree(errors.__doc__)
    assert len(drawn) >= 30
    assert disagreements(drawn) == []
    assert all(0 < kind.exit_code < 126 for kind in all_errors())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("PatchMalformed        31", "PatchMalformed        30"), "exit code 30 is used twice"),
        (
            ("│   └── PatchMalformed ", "├── PatchMalformed     "),
            "PatchMalformed is PatchError, 31 and drawn as",
        ),
        (("    ├── UsageError ", "    ├── UsageErrors"), "UsageError is not drawn"),
        (("   a host cannot be used", ""), "HostError is drawn without what it is for"),
    ],
)
def test_a_wrong_drawing_is_noticed(change: tuple[str, str], complaint: str) -> None:
    assert errors.__doc__ is not None
    assert change[0] in errors.__doc__
    said = disagreements(drawn_tree(errors.__doc__.replace(*change)))
    assert any(complaint in line for line in said), said


def test_an_error_says_what_was_found_what_was_expected_and_what_to_run() -> None:
    error = errors.PinMoved(found="a", expected="b", remedy="c")
    assert str(error) == "a\n  expected: b\n  next:     c"
    assert error.as_dict() == {
        "kind": "PinMoved",
        "found": "a",
        "expected": "b",
        "next": "c",
        "exit_code": 6,
    }


def test_an_error_can_be_caught_at_each_height() -> None:
    for kind in (errors.HashMismatch, errors.FetchError, ToolError):
        with pytest.raises(kind):
            raise errors.HashMismatch(found="", expected="", remedy="")
