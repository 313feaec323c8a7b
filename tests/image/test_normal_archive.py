"""Layers are read from a save stream, and an archive without the base is written: right, bounded, fast."""

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

from dih20.errors import ImageError
from dih20.image.archive.normal_archive import NormalArchive, OwnLayer, file_header
from dih20.image.archive.normal_config import image_id
from dih20.image.archive.raw_layer import TarLayer
from dih20.image.archive.saved_layers import read_saved
from dih20.image.archive.streams import ChunkReader
from tests.image.frames import FRAME


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
