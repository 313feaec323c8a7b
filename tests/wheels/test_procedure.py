"""What every build shares is fixed, is part of the identity, and cannot be undone by a recipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dih20.wheels import procedure
from dih20.wheels.build_environment import environment_of
from dih20.wheels.jobs import bounded
from dih20.wheels.plan import Wanted, consider
from dih20.wheels.procedure import INSIDE, fixed_environment, procedure_of
from dih20.wheels.recipes import Build, Recipe, RecipeSource
from dih20.wheels.store import Store
from tests.wheels.test_plan import FACTS

MAP = "-ffile-prefix-map=/build/source=."


def _recipe(**build: object) -> Recipe:
    return Recipe(
        name="vendor",
        distribution="vendor",
        about="x",
        source=RecipeSource(path="h20_probe"),
        build=Build(**build),  # type: ignore[arg-type]
    )


def test_date_place_locale_and_hash_seed_are_fixed() -> None:
    environment = fixed_environment(_recipe())
    wanted = {
        "SOURCE_DATE_EPOCH": "1767225600",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "CPPFLAGS": MAP,
    }
    assert wanted.items() <= environment.items()
    assert "NVCC_APPEND_FLAGS" not in environment
    nvcc = fixed_environment(_recipe(nvcc=True))
    assert nvcc["NVCC_APPEND_FLAGS"] == f"-Xcompiler={MAP}"


def test_a_recipes_own_flags_stay_and_the_fixed_date_cannot_be_taken_away() -> None:
    from dih20.lock import Lock

    recipe = _recipe(environment={"CPPFLAGS": "-DX=1", "SOURCE_DATE_EPOCH": "5", "OWN": "1"})
    (wanted,) = consider(Lock.load(), FACTS, recipe, Store(Path("no-store")))
    assert isinstance(wanted, Wanted)
    jobs = bounded(cores=2, memory_limit_bytes=1 << 34, requested=None, memory_per_job_gb=1)
    seen = environment_of(wanted, FACTS, jobs)
    assert seen["CPPFLAGS"] == f"{MAP} -DX=1"
    assert seen["SOURCE_DATE_EPOCH"] == "1767225600"
    assert seen["OWN"] == "1"


def test_the_procedure_changes_with_scripts_flags_and_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = procedure_of(_recipe())
    assert procedure_of(_recipe(headers=("cuda.h",))) == before
    assert procedure_of(_recipe(nvcc=True)) != before
    monkeypatch.setattr(procedure, "FORMAT", procedure.FORMAT + 1)
    assert procedure_of(_recipe()) != before
    monkeypatch.undo()
    for name in procedure.SCRIPTS:
        (tmp_path / name).write_bytes((INSIDE / name).read_bytes())
    monkeypatch.setattr(procedure, "INSIDE", tmp_path)
    assert procedure_of(_recipe()) == before
    (tmp_path / "build_wheel.sh").write_text("another\n")
    assert procedure_of(_recipe()) != before


def test_every_python_of_a_build_lists_folders_in_order(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "folder"
    site.mkdir()
    (site / "sitecustomize.py").write_bytes((INSIDE / "sorted_listing.py").read_bytes())
    for name in (names := [f"{i:02}" for i in range(40)]):
        (folder / name).mkdir(parents=True)
    code = (
        "import os, pathlib, shutil, sys; f = sys.argv[1]\n"
        "print(os.listdir(f) == [e.name for e in os.scandir(f)] == [p.name for p in pathlib.Path(f).iterdir()]"
        " == sorted(os.listdir(f)) == next(os.walk(f))[1] == [p.name for p in pathlib.Path(f).rglob('*')])\n"
        "print(' '.join(os.listdir(f)))\n"
        "with os.scandir(f) as entries: print(next(entries).is_dir())\n"
        "shutil.copytree(f, f + '2'); shutil.rmtree(f + '2')\n"
        "print(os.listdir(os.open(f, os.O_RDONLY))[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["True", " ".join(names), "True", "00"]
