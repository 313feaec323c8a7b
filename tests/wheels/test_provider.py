"""Exactly one provider of a name: the real package only with machine code and a passed contract."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dih20.errors import WheelError
from dih20.wheels.provider import (
    choose,
    contract_file,
    refuse_two_providers,
    settle_providers,
    why_not_real,
)
from dih20.wheels.recipes import DeviceCodePromise, Recipe, RecipeSource
from dih20.wheels.rows import Row
from dih20.wheels.store import Store, StoredWheel
from tests.wheels.binaries import wheel_of
from tests.wheels.test_identity import PARTS

REAL = Recipe(
    name="deep_select",
    distribution="deep-select",
    about="x",
    policy="real-or-drop-in",
    source=RecipeSource(lock="deep_select"),
    drop_in=RecipeSource(path="dropins/deep_select"),
    device_code=DeviceCodePromise(kind="aot", architectures=("sm_90a",)),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "wheels")


def _wheel(store: Store, folder: Path, source: str, version: str) -> StoredWheel:
    files = {"deep_select/__init__.py": f"source = {source!r}\n"}
    built = wheel_of(folder, files, name="deep_select", version=version, tag="py3-none-any")
    parts = replace(PARTS, source=source)
    return store.add(built, name="deep_select", parts=parts, verdicts=[], build={})


@pytest.fixture
def real(store: Store, tmp_path: Path) -> StoredWheel:
    return _wheel(store, tmp_path / "real", "a" * 64, "1.0")


@pytest.fixture
def drop_in(store: Store, tmp_path: Path) -> StoredWheel:
    return _wheel(store, tmp_path / "drop-in", "b" * 64, "0.1")


def _contract(store: Store, wheel: StoredWheel, **values: object) -> None:
    path = contract_file(store, wheel)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"wheel_sha256": wheel.sha256, "passed": True, **values}))


def test_without_a_contract_the_drop_in_has_the_name(
    store: Store, real: StoredWheel, drop_in: StoredWheel
) -> None:
    provider, why = choose(store, real, drop_in)
    assert provider == drop_in
    assert "never run" in why


def test_a_passed_contract_of_exactly_this_wheel_gives_it_the_name(
    store: Store, real: StoredWheel, drop_in: StoredWheel
) -> None:
    _contract(store, real)
    assert choose(store, real, drop_in)[0] == real


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"passed": False}, "failed its contract tests"),
        ({"passed": "yes"}, "failed its contract tests"),
        ({"wheel_sha256": "0" * 64}, "another wheel"),
    ],
)
def test_any_other_contract_does_not(
    store: Store, real: StoredWheel, drop_in: StoredWheel, values: dict[str, object], reason: str
) -> None:
    _contract(store, real, **values)
    provider, why = choose(store, real, drop_in)
    assert provider == drop_in
    assert reason in why


def test_a_contract_that_cannot_be_read_is_an_error(store: Store, real: StoredWheel) -> None:
    path = contract_file(store, real)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(WheelError, match="not a contract"):
        why_not_real(store, real)


def test_contracts_are_no_store_entries(store: Store, real: StoredWheel) -> None:
    _contract(store, real)
    assert list(store.wheels()) == [real]


def test_after_a_build_one_row_keeps_its_wheel_and_the_other_says_why(
    store: Store, real: StoredWheel, drop_in: StoredWheel
) -> None:
    rows = [
        Row(recipe=REAL, status="built", note="never built", wheel=real),
        Row(recipe=REAL.as_drop_in(), status="hit", note="unchanged", wheel=drop_in),
    ]
    first, second = settle_providers(rows, store)
    assert (first.wheel, first.status) == (None, "unusable")
    assert "never run" in first.note
    assert second.wheel == drop_in
    _contract(store, real)
    first, second = settle_providers(rows, store)
    assert first.wheel == real
    assert second.wheel is None


def test_two_wheels_with_one_package_are_refused(
    store: Store, real: StoredWheel, drop_in: StoredWheel
) -> None:
    with pytest.raises(WheelError) as caught:
        refuse_two_providers([real, drop_in])
    assert real.path.name in caught.value.found
    assert drop_in.path.name in caught.value.found
    refuse_two_providers([real])
