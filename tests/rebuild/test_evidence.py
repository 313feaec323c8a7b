"""The committed evidence says what it is named for: equal pairs, and enough of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from dih20.paths import REPOSITORY

FOLDER = REPOSITORY / "docs" / "evidence"


def _pairs(name: str) -> list[dict[str, Any]]:
    evidence = json.loads((FOLDER / name).read_text())
    pairs: list[dict[str, Any]] = evidence["pairs"]
    equal = sum(pair["equal"] for pair in pairs)
    assert evidence["equal"] == f"{equal} of {len(pairs)}"
    return pairs


@pytest.mark.parametrize(
    "name",
    [
        "reproducible-wheels.json",
        "reproducible-vendor-wheels.json",
        "reproducible-engine-wheel.json",
    ],
)
def test_a_pair_that_is_called_equal_has_one_hash_from_two_times(name: str) -> None:
    for pair in _pairs(name):
        first, second = pair["first"], pair["second"]
        assert pair["equal"] is (first["sha256"] == second["sha256"]) is True, pair["name"]
        assert first["date"] < second["date"]


def test_our_own_wheels_were_compared_five_times_each() -> None:
    counted = Counter(pair["name"] for pair in _pairs("reproducible-wheels.json"))
    assert counted == dict.fromkeys(("h20_probe", "h20_ops", "flash_mla", "deep_select"), 5)


def test_the_vendors_wheels_were_built_in_two_images() -> None:
    pairs = _pairs("reproducible-vendor-wheels.json")
    assert {pair["name"] for pair in pairs} >= {"deep_ep", "deep_gemm"}
    assert all(pair["first"]["image"] != pair["second"]["image"] for pair in pairs)


def test_the_engines_wheel_was_built_twice() -> None:
    assert [pair["name"] for pair in _pairs("reproducible-engine-wheel.json")] == ["deepinfer"]
