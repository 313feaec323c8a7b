"""What each policy leads to, and which part of an identity depends on what; no engine needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dih20.lock import Lock
from dih20.wheels.image_facts import ImageFacts
from dih20.wheels.plan import Skipped, Wanted, as_plan, consider, recipe_digest
from dih20.wheels.recipes import Build, Recipe, RecipeSource, load_all
from dih20.wheels.store import Store

FACTS = ImageFacts(
    image_id="sha256:" + "0" * 64,
    python_tag="cp313",
    gcc="14.2.0",
    nvcc="none",
    glibc="2.41",
    torch="2.13.0+cu130 git cf30153c4c13 cuda 13.0",
    site_packages="/site",
    nccl=(
        {
            "path": "/site/nvidia/nccl",
            "libraries": ["libnccl.so.2"],
            "has_header": True,
            "version": "2.32.3",
        },
    ),
    environment={"PATH": "/usr/bin", "CPATH": "/opt/di/include"},
    labels={},
)


@pytest.fixture(scope="module")
def lock() -> Lock:
    return Lock.load()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "wheels")


def _named(name: str) -> Recipe:
    return next(recipe for recipe in load_all() if recipe.name == name)


def _vendor(tmp_path: Path, **changes: object) -> Recipe:
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    (folder / "setup.py").write_text("")
    values = {
        "name": "vendor",
        "distribution": "vendor",
        "about": "x",
        "source": RecipeSource(path=str(folder)),
    }
    return Recipe(**{**values, **changes})  # type: ignore[arg-type]


def _one(lock: Lock, facts: ImageFacts, recipe: Recipe, store: Store) -> Wanted:
    (item,) = consider(lock, facts, recipe, store)
    assert isinstance(item, Wanted)
    return item


def test_flash_mla_is_skipped_by_policy_and_its_drop_in_is_built(lock: Lock, store: Store) -> None:
    skipped, drop_in = consider(lock, FACTS, _named("flash_mla"), store)
    assert isinstance(skipped, Skipped)
    assert (
        "not buildable for SM90, skipped by policy, replaced by dropins/flash_mla" in skipped.note
    )
    assert isinstance(drop_in, Wanted)
    assert drop_in.recipe.python_tag == "py3"
    assert drop_in.recipe.source == RecipeSource(path="dropins/flash_mla")


def test_deep_select_without_a_locked_source_says_so(lock: Lock, store: Store) -> None:
    first = consider(lock, FACTS, _named("deep_select"), store)[0]
    assert isinstance(first, Skipped)
    assert "no real source is locked" in first.note
    assert "dropins/deep_select" in first.note


def test_what_needs_torch_is_left_out_where_there_is_none(
    lock: Lock, store: Store, tmp_path: Path
) -> None:
    bare = dataclasses.replace(FACTS, torch="none")
    needs = _vendor(tmp_path, build=Build(torch=True))
    (item,) = consider(lock, bare, needs, store)
    assert isinstance(item, Skipped)
    assert "no torch" in item.note
    assert _one(lock, bare, _vendor(tmp_path), store).why == "never built"


def test_a_wheel_for_every_python_does_not_depend_on_the_images(
    lock: Lock, store: Store, tmp_path: Path
) -> None:
    other = dataclasses.replace(FACTS, torch="none")
    alone = _vendor(tmp_path, python_tag="py3")
    assert _one(lock, FACTS, alone, store).parts == _one(lock, other, alone, store).parts


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"torch": "2.13.0+cu130 git 000000000000 cuda 13.0"}, "torch"),
        ({"gcc": "14.3.0"}, "toolchain"),
        ({"nvcc": "13.1 V13.1.1"}, "toolchain"),
        ({"environment": {"CPATH": "/elsewhere"}}, "environment"),
    ],
)
def test_what_the_image_brings_changes_the_part_it_belongs_to(
    lock: Lock, store: Store, tmp_path: Path, change: dict[str, object], part: str
) -> None:
    vendor = _vendor(tmp_path, build=Build(torch=True, nvcc=True))
    before = _one(lock, FACTS, vendor, store).parts.as_dict()
    after = _one(lock, dataclasses.replace(FACTS, **change), vendor, store).parts.as_dict()  # type: ignore[arg-type]
    assert [key for key in before if before[key] != after[key]] == [part]


def test_the_nccl_folder_of_the_image_goes_into_the_environment(
    lock: Lock, store: Store, tmp_path: Path
) -> None:
    vendor = _vendor(tmp_path, build=Build(nccl=True, environment={"EP_NCCL_ROOT_DIR": "{nccl}"}))
    found = _one(lock, FACTS, vendor, store)
    assert found.places["nccl"] == "/site/nvidia/nccl"
    assert found.nccl_lines[0].startswith("NCCL 2.32.3 at /site/nvidia/nccl")


def test_words_and_limits_do_not_change_a_recipes_digest_but_promises_do(tmp_path: Path) -> None:
    base = _vendor(tmp_path)
    same = _vendor(
        tmp_path,
        about="other words",
        optional=True,
        build=Build(timeout_minutes=5, memory_per_job_gb=1),
    )
    assert recipe_digest(same) == recipe_digest(base)
    assert recipe_digest(_vendor(tmp_path, imports=("vendor",))) != recipe_digest(base)
    assert recipe_digest(_vendor(tmp_path, build=Build(environment={"A": "1"}))) != recipe_digest(
        base
    )


def test_the_printed_plan_has_one_action_an_item_with_its_reason(
    lock: Lock, store: Store, tmp_path: Path
) -> None:
    items = [
        *consider(lock, FACTS, _named("flash_mla"), store),
        *consider(lock, FACTS, _vendor(tmp_path), store),
    ]
    plan = as_plan("di-h20:1", items)
    assert [(a.verb, a.needed) for a in plan.actions] == [
        ("leave", False),
        ("build", True),
        ("build", True),
    ]
    assert not plan.is_noop
    assert plan.actions[2].why == "never built"
