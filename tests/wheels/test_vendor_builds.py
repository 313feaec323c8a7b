"""The real vendors, built from the locked sources against the lock's torch; several gigabytes and minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_image, load_mirrors
from dih20.console import Console
from dih20.fetch import fetch_files
from dih20.image import build, step_plan
from dih20.lock import Lock
from dih20.wheels.recipes import load_all, select
from dih20.wheels.store import Store
from dih20.wheels.torch_layer import with_torch
from dih20.wheels.wheel_set import build_wheels

pytestmark = [pytest.mark.vendor, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def torch_image(engine: Any, standin_image: str) -> str:
    from dih20.fetch.fetching import fetch_base

    ui, lock = Console(), Lock.load()
    fetch_base(ui, base="stand-in", only="", image_name="di-h20", only_plan=False)
    fetch_files(ui, [*lock.torch_wheels("cp313"), *lock.sources()], load_mirrors())
    built = build.build_image(
        ui, engine, step_plan.chosen_base(load_image("di-h20"), "stand-in"), lock
    )
    return with_torch(ui, engine, built.tag, lock)


@pytest.mark.parametrize("name", ["deep_ep", "deep_gemm", "deepinfer"])
def test_a_vendor_builds_and_keeps_its_promises(
    engine: Any, torch_image: str, tmp_path: Path, name: str
) -> None:
    store = Store(tmp_path / "wheels")
    recipes = select(load_all(), name)
    (row,) = build_wheels(Console(), engine, torch_image, Lock.load(), recipes=recipes, store=store)
    assert row.wheel is not None
    verdicts = {verdict["check"]: verdict for verdict in row.wheel.verdicts}
    assert {verdict["status"] for verdict in verdicts.values()} <= {"ok", "not applicable"}
    assert verdicts["import"]["status"] == "ok"
    assert row.wheel.parts["python_tag"] == "cp313"
    assert row.wheel.parts["torch"].startswith("2.13.0")
