"""A finished image gets its normal form: by either way of reading, without the base, and only once."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError
from dih20.image import normal_image as module
from dih20.image.archive import held_layers
from dih20.image.archive.normal_archive import NormalArchive, OwnLayer, file_header
from dih20.image.archive.normal_config import ImageFrame, image_id
from dih20.image.archive.raw_layer import TarLayer
from dih20.image.archive.saved_layers import read_saved
from dih20.image.archive.streams import ChunkReader
from dih20.image.build import build_image
from dih20.image.image_frame import base_history, frame_of
from dih20.image.layer_folders import folder_paths
from dih20.image.newest import newest
from dih20.image.normal_image import normal_image, raw_image
from dih20.image.run_step import image_config
from dih20.lock import Lock

FRAME = ImageFrame(
    architecture="amd64",
    os="linux",
    config={"Env": ["A=1"], "Labels": {"b": "2"}, "Hostname": "0123456789ab", "Cmd": []},
    base_history=({"created": "2025-01-01T00:00:00Z", "created_by": "base"},),
    steps=("10-one", "20-none"),
)


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


def _layer(*names: str) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as out:
        for name in names:
            out.addfile(tarfile.TarInfo(name))
    return raw.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _saved(
    layers: dict[str, bytes], *, told: list[str] | None = None, before: tuple[str, ...] = ()
) -> io.BytesIO:
    """Give a save stream; keys are the layers' file names, told the diff ids of the configuration."""
    config = json.dumps({"rootfs": {"diff_ids": told or [_digest(d) for d in layers.values()]}})
    manifest = json.dumps([{"Config": "c.json", "Layers": [*before, *layers]}])
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as out:
        for name, data in {
            **layers,
            "c.json": config.encode(),
            "manifest.json": manifest.encode(),
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    raw.seek(0)
    return raw


BASE, OWN = _layer("usr/base"), _layer("opt/own")


@pytest.mark.parametrize("naming", ["old", "by digest"])
def test_only_the_wanted_layers_are_taken_out_of_a_save_stream(naming: str, tmp_path: Path) -> None:
    def name(data: bytes) -> str:
        digest = _digest(data).removeprefix("sha256:")
        return f"blobs/sha256/{digest}" if naming == "by digest" else f"{digest[::-1]}/layer.tar"

    stream = _saved({name(BASE): BASE, name(OWN): OWN})
    with read_saved(
        stream, base=[_digest(BASE)], wanted=[_digest(OWN)], known={}, spool_dir=tmp_path
    ) as saved:
        assert list(saved.layers) == [_digest(OWN)]
        assert [m.name for m in saved.layers[_digest(OWN)].members()] == [b"opt/own"]
        assert saved.names == {name(BASE): _digest(BASE), name(OWN): _digest(OWN)}
        assert saved.hashed_base == ({_digest(BASE)} if naming == "old" else set())


def test_a_layer_whose_file_name_is_known_is_not_read_again(tmp_path: Path) -> None:
    stream = _saved({"1/layer.tar": BASE, "2/layer.tar": OWN})
    known = {"1/layer.tar": _digest(BASE)}
    wanted, base = [_digest(OWN)], [_digest(BASE)]
    with read_saved(stream, base=base, wanted=wanted, known=known, spool_dir=tmp_path) as saved:
        assert saved.hashed_base == set()


def test_a_layer_too_large_to_be_ours_is_hashed_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = _many(3, 20_000)
    stream = _saved({"1/layer.tar": large, "2/layer.tar": OWN})
    kept: list[Path] = []
    real = tempfile.TemporaryFile

    def counted(dir: Path) -> Any:
        kept.append(dir)
        return real(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", counted)
    with read_saved(
        stream,
        base=[_digest(large)],
        wanted=[_digest(OWN)],
        known={},
        spool_dir=tmp_path,
        spool_up_to=len(OWN),
    ) as saved:
        assert saved.hashed_base == {_digest(large)}
        assert list(saved.layers) == [_digest(OWN)]
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("base", "wanted", "told", "problem"),
    [
        ([OWN], [OWN], None, "the image begins with"),
        ([BASE], [_layer("x")], None, "ended without"),
        ([BASE], [OWN], [BASE, _layer("x")], "hashes to"),
    ],
    ids=["another base", "a layer is missing", "a layer is not what the configuration says"],
)
def test_a_stream_that_is_not_the_image_is_refused(
    base: list[bytes], wanted: list[bytes], told: list[bytes] | None, problem: str, tmp_path: Path
) -> None:
    stream = _saved(
        {"1/layer.tar": BASE, "2/layer.tar": OWN}, told=[_digest(d) for d in told] if told else None
    )
    with pytest.raises(ImageError, match=problem):
        read_saved(
            stream,
            base=[_digest(d) for d in base],
            wanted=[_digest(d) for d in wanted],
            known={},
            spool_dir=tmp_path,
        )
    assert list(tmp_path.iterdir()) == []


def test_an_archive_holds_our_layers_and_names_the_bases_without_them() -> None:
    own = OwnLayer(diff_id=_digest(OWN), raw=TarLayer(io.BytesIO(OWN)))
    archive = NormalArchive(
        frame=FRAME, base=["sha256:b"], own=[own, OwnLayer(diff_id="", normal="")]
    )
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.chunks()))) as read:
        names = read.getnames()
        manifest = json.load(read.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = read.extractfile(manifest["Config"])
        layer = read.extractfile("own-00/layer.tar")
        assert config is not None
        assert layer is not None
        assert image_id(config.read()) == archive.image_id
        assert _digest(layer.read()) == archive.diff_ids[1] == archive.normal[_digest(OWN)]
    assert names == ["own-00/layer.tar", manifest["Config"], "manifest.json"]
    assert manifest["Layers"] == ["b/layer.tar", "own-00/layer.tar"]


def _stream(base_mib: int, own: bytes) -> Iterator[bytes]:
    """Give a save stream with a large base of one block again and again, and one layer of ours."""
    block = bytes(2 << 20)
    yield file_header("1/layer.tar", base_mib << 20)
    for _ in range(base_mib // 2):
        yield block
    told = ["sha256:b", _digest(own)]
    yield _saved({"2/layer.tar": own}, told=told, before=("1/layer.tar",)).getvalue()


def _many(files: int, size: int) -> bytes:
    content = bytes(size)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as out:
        for number in reversed(range(files)):
            info = tarfile.TarInfo(f"opt/many/{number:06d}")
            info.size = size
            out.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def _through(base_mib: int, own: bytes, spool: Path) -> NormalArchive:
    stream: Any = ChunkReader(_stream(base_mib, own))
    wanted, known = [_digest(own)], {"1/layer.tar": "sha256:b"}
    with read_saved(
        stream, base=["sha256:b"], wanted=wanted, known=known, spool_dir=spool
    ) as saved:
        layer = OwnLayer(diff_id=wanted[0], raw=saved.layers[wanted[0]])
        frame = replace(FRAME, steps=("10-one",))
        archive = NormalArchive(frame=frame, base=["sha256:b"], own=[layer])
        for _ in archive.chunks():
            pass
    return archive


def test_a_large_image_passes_in_bounded_memory(tmp_path: Path) -> None:
    own = _many(4_000, 10_000)
    tracemalloc.start()
    try:
        archive = _through(400, own, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert archive.written_bytes > 40e6
    assert peak < 64 << 20, f"{peak / 1e6:.0f} MB held at once"


def test_a_known_base_passes_at_more_than_300_megabytes_a_second(tmp_path: Path) -> None:
    started = time.process_time()  # of processor time: other work on this machine does not count
    _through(3000, _many(10, 10), tmp_path)
    seconds = time.process_time() - started
    assert 3000 / seconds > 300, f"{3000 / seconds:.0f} MiB a second"


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
