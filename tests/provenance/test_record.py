"""What a wheel carries: a record that is read back whole, and nothing in it that changes from build to build."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest

from dih20.errors import UsageError
from dih20.lock import Lock
from dih20.patches.series import load_for
from dih20.provenance.record import MEMBER, read_record
from dih20.wheels.procedure import FIXED
from tests.provenance.records import record_for, wheel_with


@pytest.mark.parametrize("name", ["deep_ep", "deepinfer", "h20_ops", "h20_probe", "flash_mla"])
def test_a_record_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    record = record_for(name)
    assert read_record(wheel_with(record, tmp_path)) == record
    assert FIXED.items() <= record.environment.items()
    assert record.parts["source"] == record.source.hash


def test_every_edit_of_the_engine_is_there_with_its_text(tmp_path: Path) -> None:
    record = record_for("deepinfer")
    patches = load_for(Lock.load(), "deepinfer")
    assert patches, "the series holds edits for SM90"
    assert [edit.id for edit in record.edits] == [patch.name for patch in patches]
    assert [edit.text.encode() for edit in record.edits] == [patch.text for patch in patches]


def test_inputs_are_named_with_their_hashes_by_role(tmp_path: Path) -> None:
    record = record_for("deep_ep")
    by_role = {role: [e for e in record.inputs if e.role == role] for role in ("source", "requirement", "header", "toolkit")}  # fmt: skip
    assert [entry.filename for entry in by_role["source"]] == ["deepinfer_ep-2.5.0.tar.gz"]
    assert "nvidia-nccl-cu13" in {entry.name for entry in by_role["header"]}
    assert "nvidia-cuda-nvcc" in {entry.name for entry in by_role["toolkit"]}
    assert all(entry.sha256 for entry in record.inputs)


def test_what_serves_every_python_names_versions_only_as_its_identity_does(tmp_path: Path) -> None:
    record = record_for("h20_ops")
    assert {entry.role for entry in record.inputs} == {"requirement"}
    assert all(entry.sha256 is None for entry in record.inputs)


def test_record_lists_what_was_put_beside_metadata(tmp_path: Path) -> None:
    wheel = wheel_with(record_for("h20_ops"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("h20_ops-1.0.dist-info/RECORD").decode()
    listed = {row[0]: row[1] for row in csv.reader(io.StringIO(text))}
    for member in (MEMBER, "sboms/dih20.cdx.json"):
        assert listed[f"h20_ops-1.0.dist-info/{member}"].startswith("sha256=")


def _no_wheel(folder: Path) -> Path:
    path = folder / "a-1.0-py3-none-any.whl"
    path.write_text("not a zip")
    return path


def _no_record(folder: Path) -> Path:
    path = folder / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", "")
    return path


def _strange_record(folder: Path) -> Path:
    path = folder / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"a-1.0.dist-info/{MEMBER}", '{"format": 99}')
    return path


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (_no_wheel, "cannot be read as a wheel"),
        (_no_record, "holds 0 of"),
        (_strange_record, "of another form"),
    ],
)
def test_a_file_without_a_readable_record_is_refused(
    tmp_path: Path, make: object, found: str
) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=found):
        read_record(make(tmp_path))
