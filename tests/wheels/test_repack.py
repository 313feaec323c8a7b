from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import time
import zipfile
from pathlib import Path

import pytest

from dih20.errors import WheelError
from dih20.wheels.repack import repack


def _built(folder: Path, order: list[str]) -> Path:
    folder.mkdir()
    path = folder / "my_vendor-1.0+cu130-py3-none-any.whl"
    content = {
        "my_vendor/__init__.py": "x = 1\n",
        "my_vendor/run.sh": "#!/bin/sh\n",
        "my_vendor-1.0+cu130.dist-info/METADATA": "Name: my-vendor\nVersion: 1.0+cu130\n\nVersion: in the text\n",
        "my_vendor-1.0+cu130.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        "my_vendor-1.0+cu130.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name in order or list(content):
            info = zipfile.ZipInfo(name, time.localtime()[:6])
            info.external_attr = (0o100775 if name.endswith(".sh") else 0o100664) << 16
            archive.writestr(info, content[name])
    return path


def test_the_same_content_in_another_order_at_another_time_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    first = _built(tmp_path / "a", [])
    with zipfile.ZipFile(first) as archive:
        reverse = list(reversed(archive.namelist()))
    second = _built(tmp_path / "b", reverse)
    os.utime(second, (1, 1))
    assert first.read_bytes() != second.read_bytes()
    for folder in ("out1", "out2"):
        (tmp_path / folder).mkdir()
    left, right = repack(first, tmp_path / "out1"), repack(second, tmp_path / "out2")
    assert left.name == right.name == first.name
    assert left.read_bytes() == right.read_bytes()


def test_a_patched_build_says_so_in_name_folder_and_metadata(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    wheel = repack(_built(tmp_path / "a", []), tmp_path / "out", local_version="di.0123456789ab")
    assert wheel.name == "my_vendor-1.0+cu130.di.0123456789ab-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("my_vendor-1.0+cu130.di.0123456789ab.dist-info/METADATA").decode()
    assert "Version: 1.0+cu130.di.0123456789ab\n" in metadata
    assert metadata.endswith("Version: in the text\n")


def test_record_lists_every_member_with_its_hash_and_modes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    wheel = repack(_built(tmp_path / "a", []), tmp_path / "out")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith("RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(rows) == set(names)
        for name in names:
            if name == record:
                assert rows[name] == ["", ""]
                continue
            digest = hashlib.sha256(archive.read(name)).digest()
            assert rows[name][0] == "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip(
                "="
            )
        assert archive.getinfo("my_vendor/run.sh").external_attr >> 16 & 0o777 == 0o755
        assert archive.getinfo("my_vendor/__init__.py").external_attr >> 16 & 0o777 == 0o644


def test_a_wheel_without_dist_info_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my_vendor-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("my_vendor/__init__.py", "")
    with pytest.raises(WheelError, match="dist-info"):
        repack(path, tmp_path)
