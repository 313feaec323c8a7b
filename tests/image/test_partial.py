"""Files of the cache that several builds may write at once are whole, and hold what each of them learnt."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dih20.image.archive import learnt
from dih20.image.archive.partial import PartialFile


def test_a_file_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), PartialFile(tmp_path / "image.tar.zst") as out:
        out.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_two_that_write_one_file_at_once_do_not_write_into_each_other(tmp_path: Path) -> None:
    path = tmp_path / "image[1].tar.zst"
    with PartialFile(path) as first:
        first.write(b"the first, ")
        with PartialFile(path) as second:
            second.write(b"the second")
        assert path.read_bytes() == b"the second"
        first.write(b"whole")
    assert path.read_bytes() == b"the first, whole"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_of_a_file_goes_with_the_next_writing(tmp_path: Path) -> None:
    path = tmp_path / "image[1].tar.zst"
    left, others = tmp_path / f"{path.name}.0123abcd.partial", tmp_path / "other.0123abcd.partial"
    for file in (left, others):
        file.write_bytes(b"gigabytes")
    with PartialFile(path) as out:
        out.write(b"whole")
    assert sorted(tmp_path.iterdir()) == [path, others]


def test_what_builds_learn_at_once_is_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    with ThreadPoolExecutor(8) as builds:
        done = [
            builds.submit(learnt.add, path, {f"name-{n}": f"layer-{n}"}, most=100)
            for n in range(40)
        ]
    assert [build.result() for build in done] == [None] * 40
    assert learnt.load(path) == {f"name-{n}": f"layer-{n}" for n in range(40)}


def test_the_newest_are_kept_and_damage_is_the_same_as_none(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text("[1, 2")
    learnt.add(path, {"a": "1", "b": "2"}, most=2)
    learnt.add(path, {"c": "3"}, most=2)
    assert json.loads(path.read_text()) == {"b": "2", "c": "3"}
