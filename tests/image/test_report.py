"""A report says what each layer adds, which files are large, and what the last build found or made."""

from __future__ import annotations

from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError
from dih20.image.build import build_image
from dih20.image.build_record import StepTime, record, recorded
from dih20.image.report import _chosen, _own_layers, report_on
from dih20.lock import Lock

ADDS = "mkdir /opt/a && head -c 3000000 /dev/zero > /opt/a/large && echo x > /opt/a/small && rm /etc/issue\n"
FOLDERS = "mkdir -p /opt/only/folders\n"


@pytest.mark.docker
def test_a_report_tells_layers_files_times_and_hits(
    engine: Any,
    standin_image: str,
    small_lock: Lock,
    stand_in_config: Any,
    make_step: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [
        make_step("40-adds", ADDS), make_step("41-none", "true\n"), make_step("42-folders", FOLDERS)
    ]  # fmt: skip
    built = build_image(Console(as_json=True), engine, stand_in_config, small_lock, steps=steps)
    report = report_on(Console(), engine, engine.images.get(built.tag))
    base, adds, none, folders = report["layers"]
    assert base["size_bytes"] > 100e6
    assert (adds["name"], adds["size_bytes"], adds["files"], adds["hidden"]) == (
        "40-adds", 3_000_002, 2, 1,
    )  # fmt: skip
    assert (none["size_bytes"], none["files"], none["folders"]) == (0, 0, 0)
    assert (folders["files"], folders["folders"]) == (0, 3)  # /opt and the two in it
    assert {layer["hit"] for layer in (adds, none, folders)} == {False}
    assert adds["seconds"] > 0
    assert report["largest"][0] == {
        "path": "/opt/a/large", "size_bytes": 3_000_000, "step": "40-adds",
    }  # fmt: skip
    assert report["normalise_s"] > 0
    shown = capsys.readouterr().out
    assert "0 of 3 steps were found" in shown
    assert "/opt/a/large" in shown

    build_image(Console(as_json=True), engine, stand_in_config, small_lock, steps=steps)
    again = report_on(Console(as_json=True), engine, engine.images.get(built.tag))
    assert again["hits"] == 3
    assert again["layers"][1]["seconds"] == adds["seconds"], "the time of when it was made"
    assert _chosen(engine, "").id == built.id


def test_layers_belong_to_the_steps_that_left_one() -> None:
    base = {"CreatedBy": "ADD", "Size": 5}
    normal = [
        base,
        {"CreatedBy": "dih20 step 1", "Comment": "no layer", "Size": 0},
        {"CreatedBy": "dih20 step 2", "Comment": "", "Size": 0},
    ]
    assert _own_layers(normal, ["b", "x"]) == {"1": "", "2": "x"}
    raw = [
        base,
        {"CreatedBy": "", "Comment": "dih20 step 1", "Size": 0},
        {"CreatedBy": "", "Comment": "dih20 step 2", "Size": 7},
    ]
    assert _own_layers(raw, ["b", "x"]) == {"1": "", "2": "x"}


@pytest.mark.docker
def test_an_image_that_is_not_there_is_named_with_the_command_that_makes_it(engine: Any) -> None:
    with pytest.raises(ImageError, match="no image di-h20:none") as caught:
        _chosen(engine, "di-h20:none")
    assert "inv build-image" in caught.value.remedy


def test_a_damaged_record_is_the_same_as_none(own_build_folder: Any) -> None:
    step = StepTime(name="10-a", key="k", hit=False, why="", seconds=1.5)
    record("f" * 64, [step], 2.0)
    assert recorded("f" * 64) == ({"10-a": step}, 2.0)
    (own_build_folder / "image-builds" / f"{'f' * 12}.json").write_text("{")
    assert recorded("f" * 64) == ({}, None)
