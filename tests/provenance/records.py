"""Records for tests: of a recipe of this repository, as a build on a certain image would write it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dih20.lock import Lock
from dih20.provenance.record import Record
from dih20.wheels.plan import Wanted, consider
from dih20.wheels.provenance import members, record_of
from dih20.wheels.recipes import load_all
from dih20.wheels.repack import repack
from dih20.wheels.store import Store
from tests.wheels.binaries import wheel_of
from tests.wheels.test_plan import FACTS


@cache  # the engine's patchset is tried on its tree each time, which takes seconds
def record_for(name: str) -> Record:
    """Give the record of a recipe built on the image of tests/wheels/test_plan."""
    lock = Lock.load()
    (recipe,) = [recipe for recipe in load_all() if recipe.name == name]
    items = consider(lock, FACTS, recipe, Store(Path("no-store")))
    (wanted,) = [item for item in items if isinstance(item, Wanted)]
    return record_of(lock, FACTS, wanted)


def wheel_with(record: Record, folder: Path, *, body: str = 'VERSION = "1.0"\n') -> Path:
    """Write a wheel of one module that carries a record and its bill of materials."""
    name = record.recipe["distribution"].replace("-", "_")
    plain = wheel_of(folder / "plain", {f"{name}/__init__.py": body}, name=name, tag="py3-none-any")
    (folder / "with").mkdir(exist_ok=True)
    return repack(plain, folder / "with", beside=lambda version: members(record, version))
