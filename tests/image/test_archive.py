"""An archive without the layers a receiver holds loads to the same image; a wrong one is refused."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dih20.errors import ImageError
from dih20.image.archive import (
    ImageLayers,
    chain_ids,
    held_layers,
    image_layers,
    load_archive,
    make_delta,
    store_kind,
    store_kind_of,
    write_archive,
)
from dih20.image.archive.streams import ChunkReader, CountingWriter

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def layers(*diff_ids: str) -> ImageLayers:
    return ImageLayers(image_id="sha256:" + "0" * 64, diff_ids=diff_ids, tags=("x:1",))


def test_a_chain_id_covers_all_layers_below() -> None:
    first, second, third = chain_ids([A, B, C])
    assert first == A
    # sha256sum of "sha256:aaaa... sha256:bbbb..."
    assert second == "sha256:ccd722928bd92476ba1745586fed6e45a102504185ad88cd89e01ff116fd146c"
    assert third not in (second, C)
    assert chain_ids([B, C]) != (second, third)


def test_only_layers_whose_chain_is_missing_are_sent() -> None:
    image = layers(A, B, C)
    delta = make_delta(image, set(image.chain_ids[:2]))
    assert (delta.send, delta.skip) == ((C,), (A, B))


def test_a_layer_held_on_another_base_is_sent_all_the_same() -> None:
    assert make_delta(layers(A, B), {B}).send == (A, B)


def test_a_layer_that_occurs_twice_is_sent_when_one_of_its_places_is_missing() -> None:
    image = layers(A, B, A)
    delta = make_delta(image, set(image.chain_ids[:2]))
    assert delta.send == (A,)
    assert delta.skip == (B,)


def test_a_receiver_that_holds_everything_gets_an_empty_delta() -> None:
    image = layers(A, B)
    assert make_delta(image, set(image.chain_ids)).is_empty


def test_a_containerd_store_on_either_side_gets_a_complete_archive() -> None:
    image = layers(A, B)
    for side in ({"sender": "containerd"}, {"receiver": "containerd"}):
        delta = make_delta(image, set(image.chain_ids), **side)  # type: ignore[arg-type]
        assert delta.verbatim
        assert delta.send == (A, B)
        assert "containerd" in delta.why


def test_the_store_kind_is_read_from_docker_info() -> None:
    assert store_kind_of([["driver-type", "io.containerd.snapshotter.v1"]]) == "containerd"
    assert (
        store_kind_of([["Backing Filesystem", "extfs"], ["Native Overlay Diff", "true"]])
        == "graphdriver"
    )


def test_streams_hold_a_bounded_part_in_memory() -> None:
    block = bytes(1 << 20)
    member = tarfile.TarInfo("layer.tar")
    member.size = 300 << 20

    def chunks() -> Iterator[bytes]:
        yield member.tobuf()
        for _ in range(300):
            yield block
        yield bytes(1024)

    class Nowhere(io.RawIOBase):
        def write(self, data: Any) -> int:
            return len(data)

    tracemalloc.start()
    out = CountingWriter(Nowhere())  # type: ignore[arg-type]
    with tarfile.open(fileobj=ChunkReader(chunks()), mode="r|", bufsize=1 << 20) as saved:
        for entry in saved:
            content = saved.extractfile(entry)
            assert content is not None
            while part := content.read(1 << 20):
                out.write(part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.size_bytes == 300 << 20
    assert peak < 24 << 20, f"{peak / 1e6:.0f} MB held at once"


@pytest.fixture(scope="module")
def layered(engine: Any) -> Iterator[str]:
    """An image of three layers: a larger base and two small ones; made of nothing but tars."""
    image = _imported(engine, "di-archive:base", {"base.bin": _noise(4 << 20)})
    for number in (1, 2):
        container = engine.containers.create(image, ["/none"], network_mode="none")
        data = _tar({f"file{number}": _noise(100_000, seed=number)})
        container.put_archive("/", data)
        image = container.commit("di-archive", f"{number}").id
        container.remove()
    yield "di-archive:2"
    for tag in ("2", "1", "base"):
        engine.images.remove(f"di-archive:{tag}", force=True)


def _noise(size: int, seed: int = 0) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


def _tar(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as out:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def _imported(engine: Any, tag: str, files: dict[str, bytes]) -> str:
    repository, _, version = tag.rpartition(":")
    engine.api.import_image_from_data(_tar(files), repository=repository, tag=version)
    return str(engine.images.get(tag).id)


@pytest.fixture
def receiver(second_engine: Any) -> Iterator[Any]:
    """The second engine, without any image of these tests before and after."""

    def forget() -> None:
        for image in second_engine.images.list(name="di-archive"):
            second_engine.images.remove(image.id, force=True)

    forget()
    yield second_engine
    forget()


@pytest.mark.docker
def test_a_delta_loads_on_another_engine_to_the_same_image(
    engine: Any, receiver: Any, layered: str, tmp_path: Path, record_property: Any
) -> None:
    base = image_layers(engine, "di-archive:base")
    complete = write_archive(
        engine, make_delta(base, held_layers(receiver)), tmp_path / "base.tar.zst"
    )
    load_archive(receiver, complete.path, image_id=base.image_id)

    image = image_layers(engine, layered)
    delta = make_delta(
        image, held_layers(receiver), sender=store_kind(engine), receiver=store_kind(receiver)
    )
    archive = write_archive(engine, delta, tmp_path / "delta.tar.zst")
    full = sum(len(chunk) for chunk in engine.api.get_image(layered))
    record_property("delta_bytes", archive.size_bytes)
    record_property("full_save_bytes", full)

    assert len(archive.sent) == 2
    assert archive.skipped == base.diff_ids
    assert archive.size_bytes < full / 10
    load_archive(receiver, archive.path, image_id=image.image_id)
    loaded = receiver.images.get(layered)
    assert loaded.id == image.image_id
    assert tuple(loaded.attrs["RootFS"]["Layers"]) == image.diff_ids


@pytest.mark.docker
def test_the_hash_and_sizes_of_an_archive_are_those_of_its_file(
    engine: Any, layered: str, tmp_path: Path
) -> None:
    import hashlib

    archive = write_archive(
        engine, make_delta(image_layers(engine, layered), set()), tmp_path / "a.zst"
    )
    assert archive.sha256 == hashlib.sha256(archive.path.read_bytes()).hexdigest()
    assert archive.size_bytes == archive.path.stat().st_size
    assert archive.complete


@pytest.mark.docker
def test_a_delta_that_lacks_what_the_receiver_lost_is_refused_and_nothing_is_tagged(
    engine: Any, receiver: Any, layered: str, tmp_path: Path
) -> None:
    from docker.errors import ImageNotFound

    image = image_layers(engine, layered)
    delta = make_delta(image, set(image.chain_ids[:1]))
    archive = write_archive(engine, delta, tmp_path / "delta.tar.zst")
    with pytest.raises(ImageError) as caught:
        load_archive(receiver, archive.path, image_id=image.image_id)
    assert "send again" in caught.value.remedy
    with pytest.raises(ImageNotFound):
        receiver.images.get(layered)


@pytest.mark.docker
def test_a_damaged_archive_is_an_error_and_not_a_trace(
    engine: Any, receiver: Any, layered: str, tmp_path: Path
) -> None:
    image = image_layers(engine, layered)
    archive = write_archive(engine, make_delta(image, set()), tmp_path / "a.tar.zst")
    archive.path.write_bytes(archive.path.read_bytes()[: archive.size_bytes // 2])
    with pytest.raises(ImageError):
        load_archive(receiver, archive.path, image_id=image.image_id)


@pytest.mark.docker
def test_an_archive_of_another_image_is_noticed_after_the_load(
    engine: Any, receiver: Any, layered: str, tmp_path: Path
) -> None:
    base = image_layers(engine, "di-archive:base")
    archive = write_archive(engine, make_delta(base, set()), tmp_path / "a.tar.zst")
    with pytest.raises(ImageError, match="holds no image"):
        load_archive(receiver, archive.path, image_id=image_layers(engine, layered).image_id)


@pytest.mark.docker
def test_layer_names_once_learnt_give_the_same_archive(
    engine: Any, layered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_CACHE", str(tmp_path / "cache"))
    image = image_layers(engine, layered)
    delta = make_delta(image, set(image.chain_ids[:1]))
    first = write_archive(engine, delta, tmp_path / "1.zst")
    assert (tmp_path / "cache" / "archive" / "layer-names.json").is_file()
    second = write_archive(engine, delta, tmp_path / "2.zst")
    assert first.sha256 == second.sha256
    assert first.sent == second.sent == image.diff_ids[1:]


@pytest.mark.docker
def test_a_wrong_learnt_name_is_noticed_and_forgotten(
    engine: Any, layered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.image.archive import names

    monkeypatch.setenv("DI_CACHE", str(tmp_path / "cache"))
    image = image_layers(engine, layered)
    delta = make_delta(image, set(image.chain_ids[:1]))
    write_archive(engine, delta, tmp_path / "1.zst")
    known = names.load()
    if not known:
        pytest.fail("this engine's layer files are named by their hash; nothing was learnt")
    turned = dict(zip(known, reversed(list(known.values())), strict=True))
    names.remember(turned)
    with pytest.raises(ImageError):
        write_archive(engine, delta, tmp_path / "2.zst")
    assert names.load() == {}
    assert not (tmp_path / "2.zst").exists()


def test_an_image_that_is_not_there_is_named() -> None:
    from docker.errors import ImageNotFound

    class NoImages:
        class images:  # noqa: N801  # the SDK's own name
            @staticmethod
            def get(name: str) -> None:
                raise ImageNotFound("no such image")

    with pytest.raises(ImageError, match="di-h20:none"):
        image_layers(NoImages(), "di-h20:none")  # type: ignore[arg-type]
