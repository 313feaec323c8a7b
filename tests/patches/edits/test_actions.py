"""Each action on a small module: what it writes, that it knows its own work, that it can be undone."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.patches.applying import Outcome
from dih20.patches.edits.applying import undo_edits
from dih20.patches.edits.symbols import parse
from dih20.patches.series import Patch
from tests.patches.upstream_tree import lay

MakeEdit = Callable[..., Patch]
MODULE = '''\
"""A module."""

import math
from far.away import thing as other
from far.away import tool


def plain(x: int) -> int:
    """Give a number."""

    # what is given
    if x:
        return (x
                + 1)
    return x


class Layer:
    """A layer."""

    width = 3

    @property
    @decorated(1,
               2)
    def deep(self):
        def inner():
            return 5

        self.flag = math.pi > 3 and self.width
        self.other: bool = True
        return inner()

    def call(self, x):
        with timer.record("a", scale=1):
            run(x, 1)
        return run(
            x,
            mode=2,
        )

    def short(self): return 5


def first[T](items: list[T]) -> T:
    return items[0]
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "m.py").write_text(MODULE)
    return folder


def change(symbol: str, action: str, **keys: Any) -> dict[str, Any]:
    (found,) = parse(MODULE).symbols[symbol]
    return {
        "file": "m.py",
        "symbol": symbol,
        "action": action,
        "fingerprint": found.fingerprint,
        **keys,
    }


def laid(root: Path, patch: Patch) -> str:
    """Lay an edit, see that it knows itself again and comes out without a trace; give the new text."""
    tree, (outcome,) = lay(root, patch)
    assert outcome.state == "applied", (outcome.note, outcome.error)
    entry = tree.read("m.py")
    assert entry is not None
    text = entry.content.decode()
    tree.write()
    again, (second,) = lay(root, patch)
    assert second.state == "already"
    assert again.changes == {}
    undo_edits(again)
    back = again.read("m.py")
    assert back is not None
    assert back.content.decode() == MODULE
    return text


def without_kept(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.strip().startswith("#|"))


def test_a_branch_goes_below_the_docstring_and_above_the_comment(
    root: Path, make_edit: MakeEdit
) -> None:
    code = '"""d"""\n\n\ndef plain(x):\n    # ours\n    if hopper:\n        return 128\n'
    patch = make_edit(change("plain", "insert-branch", code="c.py"), code={"c.py": code})
    assert (
        '    """Give a number."""\n'
        "    # >>> dih20 P50-x insert-branch plain\n"
        "    # ours\n"
        "    if hopper:\n"
        "        return 128\n"
        "    # <<< dih20 P50-x\n"
        "\n    # what is given\n" in laid(root, patch)
    )


def test_a_branch_in_a_class_adds_attributes(root: Path, make_edit: MakeEdit) -> None:
    patch = make_edit(
        change("Layer", "insert-branch", code="c.py"),
        code={"c.py": "class Layer:\n    depth: int = 4\n"},
    )
    text = laid(root, patch)
    assert '"""A layer."""\n    # >>> dih20' in text
    assert "    depth: int = 4\n" in text


def test_a_function_is_replaced_with_its_decorators(root: Path, make_edit: MakeEdit) -> None:
    code = "@property\ndef deep(self):\n    return 7\n"
    patch = make_edit(change("Layer.deep", "replace-function", code="c.py"), code={"c.py": code})
    text = laid(root, patch)
    assert "    @property\n    def deep(self):\n        return 7\n    #|    @property\n" in text
    assert "inner" not in without_kept(text)


def test_a_return_is_wrapped_and_nested_functions_are_left_alone(
    root: Path, make_edit: MakeEdit
) -> None:
    patch = make_edit(change("Layer.deep", "wrap-return", expression="fix(__value__)"))
    text = without_kept(laid(root, patch))
    assert "        return fix((inner()))\n" in text
    assert "            return 5\n" in text


def test_a_return_over_several_lines_is_wrapped_whole(root: Path, make_edit: MakeEdit) -> None:
    patch = make_edit(change("plain", "wrap-return", expression="-__value__", sites=2))
    text = without_kept(laid(root, patch))
    names: dict[str, Any] = {}
    exec(text[text.index("def plain") : text.index("class Layer")], names)
    assert names["plain"](4) == -5
    assert names["plain"](0) == 0


@pytest.mark.parametrize("target", ["self.flag", "self.other"])
def test_an_assignment_is_wrapped(root: Path, make_edit: MakeEdit, target: str) -> None:
    patch = make_edit(
        change("Layer.deep", "wrap-assignment", target=target, expression="not h and __value__")
    )
    text = without_kept(laid(root, patch))
    assert "not h and (" in text
    assert text.count("not h") == 1


def test_a_keyword_is_set_in_every_call_and_a_given_one_is_replaced(
    root: Path, make_edit: MakeEdit
) -> None:
    patch = make_edit(
        change("Layer.call", "set-keyword", callee="run", keyword="mode", expression="9", sites=2)
    )
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(_without_generics(laid(root, patch))))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "run"
    ]
    assert sorted(calls) == ["run(x, 1, mode=9)", "run(x, mode=9)"]


def test_a_keyword_is_set_in_the_header_of_a_block(root: Path, make_edit: MakeEdit) -> None:
    patch = make_edit(
        change("Layer.call", "set-keyword", callee="timer.record", keyword="on", expression="False")
    )
    assert 'with timer.record("a", scale=1, on=False):' in laid(root, patch)


def test_an_import_is_replaced(root: Path, make_edit: MakeEdit) -> None:
    code = (
        '"""d"""\n\nif hopper:\n    from near import tool\nelse:\n    from far.away import tool\n'
    )
    patch = make_edit(
        {"file": "m.py", "action": "replace-import", "import": "far.away.tool", "code": "c.py"},
        code={"c.py": code},
    )
    text = laid(root, patch)
    assert (
        "if hopper:\n    from near import tool\nelse:\n    from far.away import tool\n#|from"
        in text
    )


def test_code_is_added_after_a_symbol(root: Path, make_edit: MakeEdit) -> None:
    patch = make_edit(
        change("first", "add-after", code="c.py"),
        code={"c.py": "@cache\ndef second():\n    pass\n"},
    )
    text = laid(root, patch)
    assert "\n\n\n@cache\ndef second():\n    pass\n# <<< dih20 P50-x\n" in text
    parse(text)


def test_a_file_with_crlf_lines_keeps_them(root: Path, make_edit: MakeEdit) -> None:
    (root / "m.py").write_bytes(MODULE.replace("\n", "\r\n").encode())
    patch = make_edit(change("plain", "wrap-return", expression="-__value__", sites=2))
    tree, (outcome,) = lay(root, patch)
    entry = tree.read("m.py")
    assert outcome.state == "applied"
    assert entry is not None
    assert entry.content.count(b"\n") == entry.content.count(b"\r\n")
    undo_edits(tree)
    assert tree.read("m.py") == lay(root)[0].read("m.py")


def refused(root: Path, patch: Patch) -> Outcome:
    tree, (outcome,) = lay(root, patch)
    assert outcome.error is not None
    assert tree.changes == {}
    return outcome


@pytest.mark.parametrize(("given", "state"), [(1, "ambiguous"), (3, "missing")])
def test_another_number_of_sites_is_refused_and_told(
    root: Path, make_edit: MakeEdit, given: int, state: str
) -> None:
    patch = make_edit(change("plain", "wrap-return", expression="-__value__", sites=given))
    outcome = refused(root, patch)
    assert outcome.state == state
    assert f"2 sites of return where edit.yaml expects {given}" in outcome.parts[0].note


def test_a_wrong_fingerprint_is_refused_with_both(root: Path, make_edit: MakeEdit) -> None:
    good = change("plain", "wrap-return", expression="-__value__", sites=2)
    outcome = refused(root, make_edit({**good, "fingerprint": "0" * 16}))
    assert outcome.state == "body changed"
    assert outcome.parts[0].expected == "0" * 16
    assert outcome.parts[0].found == good["fingerprint"]


def test_one_bad_place_keeps_the_whole_edit_out(root: Path, make_edit: MakeEdit) -> None:
    patch = make_edit(
        change("plain", "wrap-return", expression="-__value__", sites=2),
        change("Layer.deep", "wrap-assignment", target="self.gone", expression="0"),
    )
    outcome = refused(root, patch)
    assert [part.state for part in outcome.parts] == ["applied", "missing"]
    assert outcome.note == "1 of 2 places do not fit"


def test_a_result_that_is_not_python_is_refused(root: Path, make_edit: MakeEdit) -> None:
    code = "def short(self):\n    if h:\n        return 1\n"
    outcome = refused(
        root,
        make_edit(change("Layer.short", "insert-branch", code="c.py"), code={"c.py": code}),
    )
    assert outcome.state == "malformed"
    assert "is not Python any more" in outcome.note


def test_a_symbol_defined_twice_is_ambiguous(root: Path, make_edit: MakeEdit) -> None:
    good = change("plain", "wrap-return", expression="-__value__", sites=2)
    (root / "m.py").write_text(MODULE + "\n\ndef plain(x):\n    return 1\n")
    outcome = refused(root, make_edit(good))
    assert outcome.state == "ambiguous"
    assert "defined 2 times, at lines 8, 49" in outcome.parts[0].note


def test_what_upstream_does_by_itself_is_left_alone(root: Path, make_edit: MakeEdit) -> None:
    branch = make_edit(
        change("plain", "insert-branch", code="c.py"),
        change(
            "Layer.deep", "wrap-assignment", target="self.flag", expression="not h and __value__"
        ),
        code={"c.py": "def plain(x):\n    if hopper:\n        return 128\n"},
    )
    text = MODULE.replace(
        "    if x:\n", "    if hopper:\n        return 128  # merged\n    if x:\n"
    )
    value = "math.pi > 3 and self.width"
    text = text.replace(f"self.flag = {value}", f"self.flag = not h and ({value})")
    (root / "m.py").write_text(text)
    tree, (outcome,) = lay(root, branch)
    assert outcome.state == "already upstream", outcome.parts
    assert outcome.ok
    assert tree.changes == {}


def test_a_symbol_that_upstream_added_for_it_ends_the_edit(root: Path, make_edit: MakeEdit) -> None:
    good = change("plain", "wrap-return", expression="-__value__", sites=2)
    signs = [{"file": "m.py", "symbol": "Layer.call"}]
    _, (outcome,) = lay(root, make_edit(good, **{"upstream-has": signs}))
    assert outcome.state == "already upstream"
    signs = [{"file": "m.py", "symbol": "Layer.gone"}]
    _, (outcome,) = lay(root, make_edit(good, **{"upstream-has": signs}))
    assert outcome.state == "applied"


def test_another_version_of_the_edit_in_the_tree_is_refused(
    root: Path, make_edit: MakeEdit
) -> None:
    good = change("plain", "wrap-return", expression="-__value__", sites=2)
    tree, _ = lay(root, make_edit(good))
    tree.write()
    outcome = refused(root, make_edit({**good, "expression": "+__value__"}))
    assert outcome.state == "does not apply"
    assert outcome.error is not None
    assert "--undo" in outcome.error.remedy


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"code": "c.py"}, "not for it: code"),
        ({"expression": ""}, "missing: expression"),
        ({"action": "explode"}, "action"),
        ({"fingerprint": "xyz"}, "fingerprint"),
        ({"sites": 0}, "sites"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_edit_yaml_is_malformed_and_named(
    root: Path, make_edit: MakeEdit, keys: dict[str, Any], why: str
) -> None:
    good = change("plain", "wrap-return", expression="-__value__", sites=2)
    outcome = refused(root, make_edit({**good, **keys}, code={"c.py": "x = 1\n"}))
    assert outcome.state == "malformed"
    assert outcome.error is not None
    assert why in outcome.error.found + outcome.error.expected


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ({}, "c.py is not there"),
        ({"c.py": "def plain(x):\n    pass\n", "d.py": ""}, "no change uses d.py"),
        ({"c.py": "def other(x):\n    pass\n"}, "does not define plain once"),
        ({"c.py": "def plain(x:\n"}, "not Python: line"),
        ({"c.py": "def plain(x):\n    #| no\n    pass\n"}, "like a block's own"),
    ],
)
def test_wrong_code_files_are_malformed_and_named(
    root: Path, make_edit: MakeEdit, code: dict[str, str], why: str
) -> None:
    patch = make_edit(change("plain", "insert-branch", code="c.py"), code=code)
    outcome = refused(root, patch)
    assert outcome.state == "malformed"
    assert why in outcome.note


def _without_generics(text: str) -> str:
    """Drop what the interpreter of the tests may be too old to parse."""
    return text[: text.index("def first[T]")]
