"""A finished image gets its normal form: by either way of reading, without the base, and only once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError
from dih20.image import normal_image as module
from dih20.image.archive import held_layers
from dih20.image.build import build_image
from dih20.image.image_frame import base_history, frame_of
from dih20.image.layer_folders import folder_paths
from dih20.image.newest import newest
from dih20.image.normal_image import normal_image, raw_image
from dih20.image.run_step import image_config
from dih20.lock import Lock
from tests.image.frames import FRAME


def test_the_configuration_says_nothing_of_the_build() -> None:
    config = json.loads(FRAME.config_bytes(["sha256:b"], ["sha256:o", ""]))
    assert config == {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": {"Env": ["A=1"], "Labels": {"b": "2"}},
        "history": [
            {"created": "2025-01-01T00:00:00Z", "created_by": "base"},
            {"created": "2026-01-01T00:00:00Z", "created_by": "dih20 step 10-one"},
            {
                "created": "2026-01-01T00:00:00Z",
                "created_by": "dih20 step 20-none",
                "comment": "no layer",
                "empty_layer": True,
            },
        ],
        "rootfs": {"type": "layers", "diff_ids": ["sha256:b", "sha256:o"]},
    }


def test_a_bases_history_has_one_entry_with_a_layer_for_each_layer() -> None:
    told = [
        {"Created": 20, "CreatedBy": "CMD", "Size": 0, "Comment": ""},
        {"Created": 10, "CreatedBy": "ADD", "Size": 5, "Comment": "c"},
    ]
    assert base_history(told, 1) == (
        {"created": "1970-01-01T00:00:10Z", "created_by": "ADD", "comment": "c"},
        {"created": "1970-01-01T00:00:20Z", "created_by": "CMD", "empty_layer": True},
    )
    assert [("empty_layer" in e) for e in base_history(told, 2)] == [False, False]
    assert [e["created_by"] for e in base_history(told, 2)] == [
        "layer 1 of the base",
        "layer 2 of the base",
    ]


def test_a_folder_made_by_workdir_is_a_layer_although_the_engine_calls_it_empty() -> None:
    told = [
        {"Created": 3, "CreatedBy": "ENV A=1", "Size": 0},
        {"Created": 2, "CreatedBy": "WORKDIR /workspace", "Size": 0},
        {"Created": -62135596800, "CreatedBy": "ADD rootfs", "Size": 5},
    ]
    history = base_history(told, 2)
    assert [("empty_layer" in entry) for entry in history] == [False, False, True]
    assert history[0]["created"] == "0001-01-01T00:00:00Z"


INFO = {"Driver": "overlay2", "DriverStatus": [["Native Overlay Diff", "true"]]}
IMAGE = {
    "RootFS": {"Layers": ["sha256:a", "sha256:b", "sha256:c"]},
    "GraphDriver": {"Data": {"UpperDir": "/c", "LowerDir": "/b:/a"}},
}


def test_an_engines_folders_belong_to_its_layers_from_the_top() -> None:
    assert folder_paths(INFO, IMAGE) == {"sha256:a": "/a", "sha256:b": "/b", "sha256:c": "/c"}


@pytest.mark.parametrize(
    "other",
    [
        {"Driver": "btrfs"},
        {"DriverStatus": [["Native Overlay Diff", "false"]]},
        {"DriverStatus": [["Native Overlay Diff", "true"], ["userxattr", "true"]]},
        {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]},
        {"SecurityOptions": ["name=seccomp,profile=default", "name=userns"]},
        {"SecurityOptions": ["name=rootless"]},
    ],
    ids=str,
)
def test_folders_that_are_not_exactly_the_layer_are_not_read(other: dict[str, Any]) -> None:
    assert folder_paths({**INFO, **other}, IMAGE) is None


def test_the_newest_image_is_the_one_named_last() -> None:
    class Image:
        def __init__(self, named: str) -> None:
            self.attrs = {"Metadata": {"LastTagTime": named}, "Created": "2026-01-01T00:00:00Z"}

    images: list[Any] = [
        Image("2026-11-02T00:00:00Z"), Image("2026-11-03T00:00:00Z"), Image("0001-01-01T00:00:00Z")
    ]  # fmt: skip
    assert newest(images) is images[1]


@pytest.fixture
def steps(engine: Any, standin_image: str) -> Iterator[list[tuple[str, str]]]:
    """Two raw images on the stand-in, each with one layer more, made by hand."""
    image, made = str(engine.images.get(standin_image).id), []
    for number in (1, 2):
        script = f"mkdir -p /opt/raw && date +%s%N > /tmp/x && echo {number} > /opt/raw/{number}"
        run = engine.containers.create(image, ["sh", "-c", script], network_mode="none")
        run.start()
        assert run.wait()["StatusCode"] == 0
        image = str(run.commit(conf={"Cmd": ["/bin/bash"]}).id)
        run.remove()
        made.append((f"{number}0-raw", image))
    yield made
    engine.images.remove(made[-1][1], force=True)  # and with it the nameless one below


@pytest.mark.docker
def test_both_ways_of_reading_give_one_image_on_the_bases_own_layers(
    engine: Any,
    standin_image: str,
    steps: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DI_CACHE", str(tmp_path / "cache"))  # nothing is known yet
    base = str(engine.images.get(standin_image).id)
    raw = raw_image(engine, base, steps)
    config = image_config(engine, raw.id, env={}, labels={"dih20.role": "test"})
    frame = frame_of(engine, base, config, [name for name, _ in steps])

    ui = Console(as_json=True)
    made = normal_image(ui, engine, raw, frame)
    assert ui.steps[-1].details["read"] == "the engine's folders"
    try:
        layers = engine.images.get(made.id).attrs["RootFS"]["Layers"]
        assert layers[: len(raw.base)] == list(raw.base)
        assert [diff_id for _, diff_id in made.steps] == layers[len(raw.base) :]
        assert set(layers).isdisjoint(raw.own)
        said = [entry["CreatedBy"] for entry in engine.images.get(made.id).history()]
        assert said[:2] == ["dih20 step 20-raw", "dih20 step 10-raw"]
        out = engine.containers.run(
            made.id, ["sh", "-c", "cat /opt/raw/*; ls /tmp"], remove=True, network_mode="none"
        )
        assert out == b"1\n2\n"

        started = time.monotonic()
        assert normal_image(ui, engine, raw, frame).id == made.id
        assert time.monotonic() - started < 2
        assert ui.steps[-1].status == "hit"

        other = frame_of(engine, base, {**config, "Labels": {"x": "y"}}, [n for n, _ in steps])
        relabelled = normal_image(ui, engine, raw, other)
        assert ui.steps[-1].details == {"written_bytes": 0, "read": "nothing"}
        assert relabelled.steps == made.steps
        engine.images.remove(relabelled.id)
    finally:
        engine.images.remove(made.id)
    assert not set(raw_chain(raw, made)) & held_layers(engine)

    monkeypatch.setenv("DI_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(module, "layer_folders", lambda client, image: None)
    again = normal_image(ui, engine, raw, frame)
    engine.images.remove(again.id)
    assert ui.steps[-1].details["read"] == "the engine's save stream"
    assert again == made
    assert (tmp_path / "other" / "archive" / "layer-names.json").is_file()


def raw_chain(raw: Any, made: Any) -> tuple[str, ...]:
    from dih20.image.archive import chain_ids

    own = [diff_id for _, diff_id in made.steps if diff_id]
    return chain_ids([*raw.base, *own])[len(raw.base) :]


@pytest.mark.docker
def test_steps_that_do_not_stand_on_each_other_are_refused(
    engine: Any, standin_image: str, steps: list[tuple[str, str]]
) -> None:
    base = str(engine.images.get(standin_image).id)
    with pytest.raises(ImageError, match="step 20-raw left an image on other layers"):
        raw_image(engine, base, [("10-x", base), ("20-raw", steps[1][1])])


@pytest.mark.docker
def test_an_engine_that_keeps_images_in_containerd_is_told_apart_and_the_user_is_told(
    engine: Any,
    standin_image: str,
    small_lock: Lock,
    stand_in_config: Any,
    make_step: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The store of a real one was not to be had; what it says of itself is.
    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    monkeypatch.setattr(type(engine), "info", lambda self: {"ID": "x", "DriverStatus": status})
    steps = [make_step("50-containerd", "echo x > /opt/x\n")]
    ui = Console(as_json=True)
    built = build_image(ui, engine, stand_in_config, small_lock, steps=steps)
    assert "keeps images in containerd" in capsys.readouterr().err
    assert [step for step in ui.steps if step.verb == "normalise"] == []
    facts = engine.images.get(built.tag).attrs
    assert facts["Config"]["Labels"]["dih20.role"] == "image"
    assert facts["RootFS"]["Layers"][-1] == built.layers[-1][1]
    engine.images.remove(built.tag)
