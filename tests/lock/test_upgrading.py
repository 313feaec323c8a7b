"""`inv lock` keeps pins that are still valid; only --upgrade moves them, and says which first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import PinMoved, UsageError
from dih20.lock import Lock
from tests.index.local_index import LocalIndex, wheel
from tests.lock.test_writing import change_wants, make, project

__all__ = ["project"]  # the fixture: a configuration and an index in force

NEWER = (("setuptools", "2.0"), ("pytest", "2.0"), ("sympy", "2.0"))


def publish(index: LocalIndex) -> None:
    """Put newer versions beside those that are locked."""
    for name, version in NEWER:
        index.add(name, f"{name}-{version}-py3-none-any.whl", wheel(name, version))


def moved(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(m["where"], m["name"], m["old"], m["new"]) for m in result["moves"]]


def test_a_plain_lock_keeps_every_pin_and_asks_no_index(ui: Console, project: LocalIndex) -> None:
    make(ui)
    publish(project)
    project.log.clear()
    result = make(ui)
    assert (result["changed"], result["moves"]) == (False, [])
    assert project.log == []


def test_a_plan_of_an_upgrade_names_each_pin_old_and_new_and_writes_nothing(
    ui: Console, project: LocalIndex, tmp_path: Path
) -> None:
    make(ui)
    before = (tmp_path / "di.lock.yaml").read_bytes()
    publish(project)
    plan = make(ui, upgrade=True, only_plan=True)
    found = [(a["target"], a["why"]) for a in plan["actions"] if a["verb"] == "move"]
    assert found == [
        ("wheels build cp312: setuptools", "1.0 -> 2.0"),
        ("wheels build cp313: setuptools", "1.0 -> 2.0"),
        ("wheels torch cp313: sympy", "1.0 -> 2.0"),
        ("requirements cp312: pytest", "1.0 -> 2.0"),
        ("requirements cp313: pytest", "1.0 -> 2.0"),
    ]
    assert (tmp_path / "di.lock.yaml").read_bytes() == before


def test_an_upgrade_of_all_writes_what_its_plan_said(ui: Console, project: LocalIndex) -> None:
    make(ui)
    publish(project)
    plan = make(ui, upgrade=True, only_plan=True)
    result = make(ui, upgrade=True)
    said = [a["details"] for a in plan["actions"] if a["verb"] == "move"]
    assert result["moves"] == said
    assert [f.version for f in Lock.load().requirements("cp313")] == ["1.0", "2.0"]
    assert make(ui, upgrade=True)["moves"] == []


def test_an_upgrade_of_a_name_moves_that_name_alone(ui: Console, project: LocalIndex) -> None:
    make(ui)
    publish(project)
    result = make(ui, upgrade="sympy")
    assert moved(result) == [("wheels torch cp313", "sympy", "1.0", "2.0")]


def test_an_upgrade_takes_along_what_the_new_version_needs(
    ui: Console, project: LocalIndex
) -> None:
    make(ui)
    publish(project)
    project.add("einops", "einops-1.0-py3-none-any.whl", wheel("einops", "1.0", ["torch"]))
    project.add("pytest", "pytest-3.0-py3-none-any.whl", wheel("pytest", "3.0", ["sympy>=2"]))
    result = make(ui, upgrade="pytest")
    assert ("requirements cp313", "pytest", "1.0", "3.0") in moved(result)
    assert ("requirements cp313", "sympy", "absent", "2.0") in moved(result)
    assert [m for m in moved(result) if m[0].startswith("wheels")] == []


def test_a_changed_want_moves_what_it_names_and_keeps_the_rest(
    ui: Console, project: LocalIndex, tmp_path: Path
) -> None:
    make(ui)
    publish(project)
    change_wants(tmp_path, project, build=["setuptools", "sympy"])
    result = make(ui)
    assert moved(result) == [
        ("wheels build cp312", "sympy", "absent", "1.0"),
        ("wheels build cp313", "sympy", "absent", "1.0"),
    ], "sympy is locked at 1.0 elsewhere; setuptools stays"


def test_a_pin_that_no_index_has_any_more_moves_when_its_section_must_be_resolved(
    ui: Console, project: LocalIndex, tmp_path: Path
) -> None:
    make(ui)
    publish(project)
    del project.projects["setuptools"]["setuptools-1.0-py3-none-any.whl"]
    assert make(ui)["moves"] == [], "nobody asked for anything else"
    change_wants(tmp_path, project, build=["setuptools", "pytest"])
    assert ("wheels build cp313", "setuptools", "1.0", "2.0") in moved(make(ui))


def test_a_file_with_other_content_under_its_name_is_refused_until_it_is_named(
    ui: Console, project: LocalIndex, tmp_path: Path
) -> None:
    make(ui)
    before = (tmp_path / "di.lock.yaml").read_bytes()
    replaced = wheel("setuptools", "1.0", files={"setuptools/other.py": b""})
    project.add("setuptools", "setuptools-1.0-py3-none-any.whl", replaced)
    change_wants(tmp_path, project, build=["setuptools", "pytest"])
    with pytest.raises(PinMoved) as caught:
        make(ui)
    assert "wheels build cp313: setuptools 1.0 (sha256 " in caught.value.found
    assert "./inv lock --upgrade setuptools` accepts" in caught.value.remedy, "each name once"
    for other in (True, "sympy"):  # newer versions are asked for, not other content
        with pytest.raises(PinMoved, match="setuptools"):
            make(ui, upgrade=other)
    assert (tmp_path / "di.lock.yaml").read_bytes() == before
    make(ui, upgrade="setuptools")
    assert (tmp_path / "di.lock.yaml").read_bytes() != before


def test_a_name_that_the_lock_does_not_hold_is_a_usage_error(
    ui: Console, project: LocalIndex
) -> None:
    make(ui)
    with pytest.raises(UsageError, match="the lock holds no 'setuptolls'") as caught:
        make(ui, upgrade="setuptolls")
    assert "near it: setuptools" in caught.value.expected
    with pytest.raises(UsageError, match="no 'einops' in wheels"):
        make(ui, only="wheels", upgrade="einops")
