"""The collection in tasks.py: every task keeps the rules, and listing it stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dih20.paths import REPOSITORY

#: tasks that change nothing a user has; every other task must have --plan
READ_ONLY = {
    "ask",
    "logs",
    "status",
    "capacity",
    "checkpoint",
    "doctor",
    "image-report",
    "explain",
    "lint",
    "test",
    "verify",
}
HEAVY = (
    "cryptography",
    "docker",
    "jinja2",
    "libcst",
    "paramiko",
    "pydantic",
    "rich",
    "tilelang",
    "torch",
    "unidiff",
)
MODULES = sorted((REPOSITORY / "dih20").glob("*/tasks.py"))

_WALK = """
import json, sys
import tasks
flags = {name: [argument.name for argument in tasks.namespace[name].get_arguments()]
         for name in tasks.namespace.task_names}
helps = {name: tasks.namespace[name].__doc__ for name in tasks.namespace.task_names}
print(json.dumps({"flags": flags, "helps": helps}))
"""


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def collection() -> dict[str, dict[str, list[str]]]:
    walked: dict[str, dict[str, list[str]]] = json.loads(_python(_WALK))
    assert len(walked["flags"]) >= 4
    return walked


def test_every_task_has_json(collection: dict[str, dict[str, list[str]]]) -> None:
    assert [name for name, flags in collection["flags"].items() if "json" not in flags] == []


def test_every_task_that_changes_something_has_plan(
    collection: dict[str, dict[str, list[str]]],
) -> None:
    without = {name for name, flags in collection["flags"].items() if "plan" not in flags}
    assert without <= READ_ONLY, "give the task changes=True, or name it in READ_ONLY"


def test_every_task_says_what_it_is_for_in_one_line(
    collection: dict[str, dict[str, list[str]]],
) -> None:
    for name, text in collection["helps"].items():
        assert text, name
        assert len(str(text).splitlines()[0]) <= 80, name


def long_tasks(source: str) -> list[str]:
    """Name functions of a tasks module with more than ten lines under their docstring."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            last = node.body[-1].end_lineno or 0
            first = node.body[1].lineno if len(node.body) > 1 else node.body[0].lineno
            if last - first + 1 > 10:
                found.append(node.name)
    return found


def test_a_task_has_ten_lines_at_most() -> None:
    assert {str(path): long for path in MODULES if (long := long_tasks(path.read_text()))} == {}


def test_a_longer_task_is_noticed() -> None:
    body = "\n".join(f"    x{i} = {i}" for i in range(11))
    assert long_tasks(f'@task()\ndef a(run):\n    """Do it."""\n{body}\n') == ["a"]


def heavy_imports(statement: str) -> list[str]:
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted({set(HEAVY)!r} & set(sys.modules))))"
    found: list[str] = json.loads(_python(code))
    return found


def test_listing_tasks_imports_nothing_heavy() -> None:
    culprits = heavy_imports("import tasks")
    if culprits:  # name the module at fault, not only the fact
        for path in MODULES:
            name = f"dih20.{path.parent.name}.tasks"
            assert heavy_imports(f"import {name}") == [], name
    assert culprits == []


def test_a_heavy_import_is_noticed(tmp_path: Path) -> None:
    assert heavy_imports("import dih20.console") == ["rich"]


def test_importing_the_collection_takes_little_processor_time() -> None:
    code = "import time; t = time.process_time(); import tasks; print(time.process_time() - t)"
    assert min(float(_python(code)) for _ in range(3)) < 0.5
