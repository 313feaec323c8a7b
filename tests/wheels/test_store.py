from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dih20.errors import WheelError
from dih20.wheels import store as store_module
from dih20.wheels.store import Store, StoredWheel
from tests.wheels.binaries import wheel_of
from tests.wheels.test_identity import PARTS

VERDICTS = [{"check": "tag", "status": "ok", "found": "py3-none-any"}]


def _add(store: Store, tmp_path: Path, parts: object = PARTS, name: str = "vendor") -> StoredWheel:
    wheel = wheel_of(tmp_path / "built", {"vendor/__init__.py": ""}, tag="py3-none-any")
    assert parts is PARTS or hasattr(parts, "identity")
    return store.add(wheel, name=name, parts=parts, verdicts=VERDICTS, build={"seconds": 1})  # type: ignore[arg-type]


def test_what_was_added_is_found_by_its_identity(tmp_path: Path) -> None:
    store = Store(tmp_path / "wheels")
    added = _add(store, tmp_path)
    found = store.find(PARTS.identity)
    assert found == added
    assert sorted(p.name for p in found.path.parent.iterdir()) == [found.path.name, "wheel.json"]
    assert found.version == "1.0"


def test_a_miss_says_never_built_or_names_the_part_against_the_nearest(tmp_path: Path) -> None:
    store = Store(tmp_path / "wheels")
    assert store.why_missing("vendor", PARTS) == "never built"
    _add(store, tmp_path)
    _add(store, tmp_path, replace(PARTS, source="0" * 64, recipe="1" * 64, torch="other"))
    why = store.why_missing("vendor", replace(PARTS, toolchain="nvcc 13.1, g++ 14.2.0"))
    assert why == "toolchain: nvcc 13.0.88, g++ 14.2.0 -> nvcc 13.1, g++ 14.2.0"
    assert store.why_missing("another", PARTS) == "never built"


def test_a_hit_takes_far_less_than_two_seconds(tmp_path: Path) -> None:
    store = Store(tmp_path / "wheels")
    _add(store, tmp_path)
    started = time.monotonic()
    assert store.find(PARTS.identity) is not None
    assert time.monotonic() - started < 0.5


def test_a_build_that_breaks_off_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "wheels")

    def full_disk(path: Path) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "sha256_of", full_disk)
    with pytest.raises(OSError, match="No space"):
        _add(store, tmp_path)
    assert list((tmp_path / "wheels").iterdir()) == []
    assert store.find(PARTS.identity) is None


def test_an_entry_that_another_build_added_meanwhile_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "wheels")
    first = _add(store, tmp_path)
    there = first.path.stat().st_ino
    second = _add(store, tmp_path / "later")
    assert second == first
    assert first.path.stat().st_ino == there
    assert [entry.name for entry in (tmp_path / "wheels").iterdir()] == [PARTS.identity]


def _truncate(wheel: StoredWheel) -> None:
    wheel.path.write_bytes(wheel.path.read_bytes()[:-1])


def _flip_a_byte(wheel: StoredWheel) -> None:
    data = bytearray(wheel.path.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.path.write_bytes(data)


def _break_the_record(wheel: StoredWheel) -> None:
    (wheel.path.parent / "wheel.json").write_text("{")


def _add_a_key(wheel: StoredWheel) -> None:
    record = wheel.path.parent / "wheel.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "strange": 1}))


@pytest.mark.parametrize("damage", [_truncate, _flip_a_byte, _break_the_record, _add_a_key])
def test_a_damaged_entry_is_an_error_and_never_a_hit_or_a_miss(
    tmp_path: Path, damage: object
) -> None:
    store = Store(tmp_path / "wheels")
    wheel = _add(store, tmp_path)
    assert callable(damage)
    damage(wheel)
    with pytest.raises(WheelError) as caught:
        store.find(PARTS.identity)
    assert "damaged" in caught.value.found
    assert "remove" in caught.value.remedy
