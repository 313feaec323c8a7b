"""Two real builds of a small vendor: equal when it keeps to its inputs, named when it does not."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_mirrors
from dih20.console import Console
from dih20.errors import NotReproducible, UsageError
from dih20.fetch import fetch_files
from dih20.lock import Lock
from dih20.provenance.record import read_record
from dih20.rebuild.wheel_pairs import WheelCheck
from dih20.rebuild.wheels import as_plan, check, judged
from dih20.wheels.plan import Wanted
from dih20.wheels.recipes import Recipe
from dih20.wheels.store import Store
from tests.wheels.vendors import ninja_vendor, vendor_recipe

pytestmark = pytest.mark.docker
_SABOTAGE = """
import time
text = 'int part1(void) { return 1; }\\nconst char when[] = "%d";\\n' % time.time_ns()
Path("part1.c").write_text(text)
"""


@pytest.fixture(scope="module")
def lock() -> Lock:
    lock = Lock.load()
    files = lock.build_requirements("cp313")
    fetch_files(Console(as_json=True), files, load_mirrors(), what="files for wheel builds")
    return lock


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A vendor in C with debug information, whose setup writes a list of what a folder holds."""
    folder = ninja_vendor(tmp_path / "vendor", compile_command="gcc -g -fPIC", files=2, suffix="c")
    setup = folder / "setup.py"
    text = setup.read_text().replace(
        "        out = ",
        '        Path(self.build_lib, "vendor", "list.txt").write_text("\\n".join(map(str, Path(".").rglob("part*.c"))))\n'
        "        out = ",
    )
    setup.write_text(text)
    return folder


def _check(engine: Any, image: str, lock: Lock, recipe: Recipe, tmp_path: Path) -> WheelCheck:
    return WheelCheck(
        ui=Console(as_json=True),
        client=engine,
        image=image,
        lock=lock,
        store=Store(tmp_path / "wheels"),
        recipes=[recipe],
        scratch=tmp_path / "rebuild",
    )


def _wanted(check: WheelCheck) -> Wanted:
    (item,) = check.considered("")
    assert isinstance(item, Wanted)
    return item


@pytest.fixture(autouse=True)
def own_build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))


def test_two_builds_of_a_vendor_are_one_file_that_says_what_it_is_made_from(
    engine: Any, standin_image: str, lock: Lock, vendor: Path, tmp_path: Path
) -> None:
    recipe = vendor_recipe(vendor)
    check = _check(engine, standin_image, lock, recipe, tmp_path)
    wanted = _wanted(check)
    first = check.build_once(wanted, standin_image, tmp_path / "kept")
    second = check.build_once(wanted, standin_image, tmp_path / "another" / "place")
    assert first.sha256 == second.sha256
    assert first.path.read_bytes() == second.path.read_bytes()

    record = read_record(first.path)
    assert record.identity == wanted.parts.identity == first.identity
    assert {entry.name for entry in record.inputs} == {"setuptools", "wheel", "ninja"}
    assert record.environment["SOURCE_DATE_EPOCH"] == "1767225600"
    with zipfile.ZipFile(first.path) as archive:
        assert archive.read("vendor/list.txt") == b"part1.c\npart2.c"
        listed = archive.read("vendor-1.0.dist-info/RECORD").decode()
    for member in ("dih20-provenance.json", "sboms/dih20.cdx.json"):
        assert f"vendor-1.0.dist-info/{member},sha256=" in listed
    statement = json.loads(Path(f"{first.path}.intoto.json").read_text())
    assert statement["subject"] == [{"name": first.path.name, "digest": {"sha256": first.sha256}}]
    assert statement["predicate"]["runDetails"]["metadata"]["startedOn"] < first.build["date"]


def test_a_setup_that_builds_the_time_in_is_named_with_member_and_section(
    engine: Any, standin_image: str, lock: Lock, vendor: Path, tmp_path: Path
) -> None:
    setup = vendor / "setup.py"
    setup.write_text(setup.read_text().replace("class Build(build_py)", _SABOTAGE + "class Build(build_py)"))  # fmt: skip
    check = _check(engine, standin_image, lock, vendor_recipe(vendor), tmp_path)
    pair = check.pair(_wanted(check))
    assert pair.first.sha256 != pair.second.sha256
    with pytest.raises(NotReproducible) as caught:
        judged(Console(as_json=True), standin_image, [pair], {})
    for part in ("vendor: vendor/_C.so, bytes ", "section .rodata", "host code or data differs"):
        assert part in caught.value.found
    assert caught.value.details["pairs"][0]["equal"] is False
    kept = list((tmp_path / "rebuild" / "vendor").rglob("*.whl"))
    assert len(kept) == 2, "both builds stay there for a look"


def test_the_plan_says_what_is_built_and_what_the_store_has(
    engine: Any, standin_image: str, lock: Lock, vendor: Path, tmp_path: Path
) -> None:
    check = _check(engine, standin_image, lock, vendor_recipe(vendor), tmp_path)
    (action,) = as_plan("image", check.considered(""), 5).actions
    assert (action.verb, action.target, action.why) == ("build twice", "vendor", "5 times")


def test_the_command_checks_a_recipe_by_its_name_and_writes_evidence(
    private_engine: Any,
    standin_image: str,
    lock: Lock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", private_engine.url)
    monkeypatch.setenv("DI_WHEELS", str(tmp_path / "wheels"))
    ui, evidence = Console(as_json=True), tmp_path / "evidence.json"
    told = check(ui, only="flash_mla", image=standin_image, plan_only=True)
    assert [a["verb"] for a in told["plan"]["actions"]] == ["leave", "build twice"]
    assert lock.identity
    result = check(ui, only="flash_mla", image=standin_image, evidence=str(evidence))
    (pair,) = result["pairs"]
    assert pair["first"]["sha256"] == pair["second"]["sha256"]
    assert pair["first"]["from"] == "this run"
    written = json.loads(evidence.read_text())
    assert (written["equal"], written["pairs"]) == ("1 of 1", result["pairs"])
    with pytest.raises(UsageError, match="--times 0"):
        check(ui, times=0)
