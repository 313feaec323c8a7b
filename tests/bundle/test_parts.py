"""Entries become parts and files again: the same bytes each time, and every fault is named."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dih20.bundle import parts as parts_module
from dih20.bundle.entries import Entry, in_order, of_bytes, of_tree, of_wheel
from dih20.bundle.onhost.reading import check_parts, unpack
from dih20.bundle.parts import BlockCompressor, Splitter, write_archive
from dih20.errors import HashMismatch, WheelError
from tests.wheels.binaries import wheel_of


def packed(folder: Path, entries: list[Entry], *, size: int, workers: int = 0) -> dict[str, Any]:
    folder.mkdir()
    splitter = Splitter(folder, size)
    compressor = BlockCompressor(splitter.write, 1, workers)
    groups = write_archive(entries, compressor, lambda _: None)
    compressor.close()
    return {"whole": splitter.close(), "parts": splitter.parts, "groups": groups, "tools": {}}


@pytest.fixture
def entries() -> list[Entry]:
    noise = [of_bytes(f"site/noise-{i}", os.urandom(50_000)) for i in range(6)]
    link = Entry(name="site/link", size=0, open=noise[0].open, link="noise-0")
    return in_order([*noise, link, of_bytes("own/COMMIT", b"abc\n"), of_bytes("own/empty", b"")])


def test_the_same_entries_give_the_same_bytes_with_any_number_of_workers(
    tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "BLOCK", 64 << 10)  # several blocks, also for small entries
    first = packed(tmp_path / "a", entries, size=100_000, workers=1)
    second = packed(tmp_path / "b", list(entries), size=100_000, workers=4)
    assert first == second
    for part in first["parts"]:
        name = part["name"]
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_blocks_of_unchanged_groups_are_found_compressed(
    tmp_path: Path, entries: list[Entry]
) -> None:
    known, changed = tmp_path / "known", in_order([*entries, of_bytes("own/new", b"new")])
    written = []
    for number, given in enumerate((entries, entries, changed)):
        parts: list[bytes] = []
        compressor = BlockCompressor(parts.append, 1, known=known)
        write_archive(given, compressor, lambda _: None)
        compressor.close()
        written.append((b"".join(parts), sorted(path.name for path in known.iterdir())))
        assert number or len(written[0][1]) == 2, "a block for each group"
    assert written[0] == written[1]
    assert len(set(written[2][1]) - set(written[0][1])) == 1, "only the changed group is new"


def test_a_spoiled_block_is_made_anew(tmp_path: Path, entries: list[Entry]) -> None:
    results = []
    for _ in range(2):
        parts: list[bytes] = []
        compressor = BlockCompressor(parts.append, 1, known=tmp_path / "known")
        write_archive(entries, compressor, lambda _: None)
        compressor.close()
        results.append(b"".join(parts))
        for path in (tmp_path / "known").iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    assert results[0] == results[1]


def test_parts_are_numbered_full_but_the_last_and_hash_to_the_whole(
    tmp_path: Path, entries: list[Entry]
) -> None:
    made = packed(tmp_path / "a", entries, size=100_000)
    sizes = [part["size_bytes"] for part in made["parts"]]
    assert len(sizes) > 2 and set(sizes[:-1]) == {100_000} and 0 < sizes[-1] <= 100_000
    joined = b"".join((tmp_path / "a" / part["name"]).read_bytes() for part in made["parts"])
    assert hashlib.sha256(joined).hexdigest() == made["whole"]["sha256"]
    assert [part["name"][-3:] for part in made["parts"]][:2] == ["001", "002"]


def test_what_was_packed_comes_out_again(tmp_path: Path, entries: list[Entry]) -> None:
    made = packed(tmp_path / "a", entries, size=70_000)
    assert unpack(tmp_path / "a", made, tmp_path / "out") == len(entries)
    for entry in entries:
        with entry.open() as content:
            assert entry.link or (tmp_path / "out" / entry.name).read_bytes() == content.read()
    assert (tmp_path / "out/site/link").readlink() == Path("noise-0")


def test_a_changed_file_changes_the_hash_of_its_group_alone(
    tmp_path: Path, entries: list[Entry]
) -> None:
    first = packed(tmp_path / "a", entries, size=1 << 20)["groups"]
    changed = [e for e in entries if e.name != "own/empty"] + [of_bytes("own/empty", b"x")]
    second = packed(tmp_path / "b", in_order(changed), size=1 << 20)["groups"]
    assert first["own"] != second["own"] and first["site"] == second["site"]


def spoil_missing(part: Path) -> None:
    part.unlink()


def spoil_bit(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)


def spoil_length(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(spoil_missing, "is missing"), (spoil_bit, "is damaged"), (spoil_length, "bytes of")],
)
def test_a_spoiled_part_is_named(
    tmp_path: Path, entries: list[Entry], spoil: Any, words: str
) -> None:
    made = packed(tmp_path / "a", entries, size=100_000)
    check_parts(tmp_path / "a", made)
    spoil(tmp_path / "a" / "di-h20.part-002")
    with pytest.raises(HashMismatch, match=f"part-002.*{words}") as caught:
        check_parts(tmp_path / "a", made)
    assert "part-001" not in caught.value.found


def test_every_spoiled_part_is_named_at_once(tmp_path: Path, entries: list[Entry]) -> None:
    made = packed(tmp_path / "a", entries, size=100_000)
    spoil_missing(tmp_path / "a" / "di-h20.part-001")
    spoil_bit(tmp_path / "a" / "di-h20.part-003")
    with pytest.raises(HashMismatch) as caught:
        check_parts(tmp_path / "a", made)
    assert "part-001 is missing" in caught.value.found
    assert "part-003 is damaged" in caught.value.found


def test_a_wheel_lies_as_if_installed(tmp_path: Path) -> None:
    wheel = wheel_of(
        tmp_path,
        {
            "vendor/__init__.py": "",
            "vendor-1.0.data/purelib/more.py": "",
            "vendor-1.0.data/scripts/tool": "#!python",
            "vendor-1.0.data/data/share/doc": "",
        },
    )
    found = {entry.name: entry for entry in of_wheel("site", wheel)}
    assert {"site/vendor/__init__.py", "site/more.py", "site/bin/tool"} <= found.keys()
    assert not any("share" in name for name in found)
    assert found["site/bin/tool"].executable and not found["site/more.py"].executable


def test_two_packages_may_not_disagree_on_a_file() -> None:
    same = [of_bytes("site/a.py", b"1"), of_bytes("site/a.py", b"1")]
    assert len(in_order(same)) == 1
    with pytest.raises(WheelError, match=r"site/a\.py"):
        in_order([*same, of_bytes("site/a.py", b"2")])


def test_caches_and_hidden_files_stay_behind(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "__pycache__/a.pyc",
        ".mypy_cache/x",
        "build/x",
        "x.egg-info/PKG-INFO",
        ".h",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [entry.name for entry in of_tree("own/p", tmp_path)] == ["own/p/a.py"]
