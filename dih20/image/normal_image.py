"""Give a finished image its normal form, so that the same inputs make the same image id.

The steps' own layers are read where the engine keeps them, or out of its save stream, written anew
(dih20.image.archive) and loaded back without the base. The base's layers are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dih20.console import Console
from dih20.errors import ImageError
from dih20.image.archive import chain_ids, held_layers, normal_names
from dih20.image.archive import names as file_names
from dih20.image.archive.load import load_chunks
from dih20.image.archive.normal_archive import NormalArchive, OwnLayer
from dih20.image.archive.normal_config import ImageFrame, image_id
from dih20.image.archive.raw_layer import RawLayer
from dih20.image.archive.saved_layers import read_saved
from dih20.image.archive.streams import ChunkReader
from dih20.image.archive.write import SAVE_CHUNK_BYTES
from dih20.image.layer_folders import folder_paths, layer_folders
from dih20.paths import cache_dir

if TYPE_CHECKING:
    import docker

    from dih20.image.host_normal import HostNormal


@dataclass(frozen=True, kw_only=True)
class RawImage:
    """An image as steps left it. `steps` gives, for each step in order, its name and its layer, "" for none."""

    id: str
    base: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(diff_id for _, diff_id in self.steps if diff_id)


@dataclass(frozen=True, kw_only=True)
class NormalImage:
    """An image in its normal form; `steps` as in RawImage."""

    id: str
    steps: tuple[tuple[str, str], ...]


def raw_image(client: docker.DockerClient, base: str, steps: Sequence[tuple[str, str]]) -> RawImage:
    """Look at the images that steps left, given as (name, image id); each stands on the one before."""
    base_layers = _layers(client, base)
    below, found, current = base_layers, [], base
    for name, current in steps:
        layers = _layers(client, current)
        if layers[: len(below)] != below or len(layers) - len(below) > 1:
            raise ImageError(
                found=f"step {name} left an image on other layers than those of the step below",
                expected=f"{len(below)} layers as they are, and at most one more",
                remedy="./inv build-image again; another program changed images of this engine",
            )
        found.append((name, layers[-1] if len(layers) > len(below) else ""))
        below = layers
    return RawImage(id=current, base=base_layers, steps=tuple(found))


def normal_image(
    ui: Console,
    client: docker.DockerClient,
    raw: RawImage,
    frame: ImageFrame,
    there: HostNormal | None = None,
) -> NormalImage:
    """Give the image in its normal form, making it when the engine does not hold it.

    Args:
        there: for an engine on another machine: makes it there, so that no layer travels.
    """
    known = normal_names.load()
    with ui.step("normalise", f"{len(raw.own)} layers") as step:
        found = _expected(raw, frame, known)
        if found and _is_there(client, found):
            step.status, step.note = "hit", f"{found[7:19]}, the layers are unchanged"
            return NormalImage(id=found, steps=_normal_steps(raw, known))
        held = held_layers(client)
        own = _without_held(raw, known, held)
        to_read = [layer.diff_id for layer in own if layer.normal is None]
        archive = NormalArchive(frame=frame, base=raw.base, own=own)
        how = _make(ui, client, archive, raw, to_read, there)
        _check(client, archive, raw)
        normal_names.remember(archive.normal)
        step.status = "miss"
        step.note = (
            f"{archive.image_id[7:19]}, {len(to_read)} written ({archive.written_bytes / 1e6:.0f} MB, {how}), "
            f"{archive.left_out} leftovers"
        )
        step.details = {"written_bytes": archive.written_bytes, "read": how}
        return NormalImage(
            id=archive.image_id, steps=_normal_steps(raw, {**known, **archive.normal})
        )


def _make(
    ui: Console,
    client: docker.DockerClient,
    archive: NormalArchive,
    raw: RawImage,
    to_read: Sequence[str],
    there: HostNormal | None,
) -> str:
    """Write the archive and load it; give how the layers were read."""
    if there and to_read and layer_folders(client, raw.id) is None:
        paths = folder_paths(client.info(), client.images.get(raw.id).attrs)
        if paths is not None:
            there.load(archive, raw.id, {diff_id: paths[diff_id] for diff_id in to_read})
            return "in a container on the host"
    with readable_layers(ui, client, raw.id, raw.base, to_read) as (layers, how):
        archive.own = [
            OwnLayer(diff_id=o.diff_id, normal=o.normal, raw=layers.get(o.diff_id))
            for o in archive.own
        ]
        with ui.progress("load", None) as advance:
            load_chunks(client, _counted(archive, advance))
    return how


def _normal_steps(raw: RawImage, known: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, known[diff_id] if diff_id else "") for name, diff_id in raw.steps)


def _expected(raw: RawImage, frame: ImageFrame, known: Mapping[str, str]) -> str:
    """Give the id that the image will have, when the normal form of each layer is known."""
    if any(diff_id not in known for diff_id in raw.own):
        return ""
    own = [diff_id for _, diff_id in _normal_steps(raw, known)]
    return image_id(frame.config_bytes(raw.base, own))


def _without_held(raw: RawImage, known: Mapping[str, str], held: frozenset[str]) -> list[OwnLayer]:
    """Give our layers; one that the engine holds in normal form, on the same layers, need not be read."""
    below, own, is_held = list(raw.base), [], True
    for _, diff_id in raw.steps:
        if not diff_id:
            own.append(OwnLayer(diff_id="", normal=""))
            continue
        normal = known.get(diff_id)
        if normal:
            is_held = is_held and chain_ids([*below, normal])[-1] in held
            below.append(normal)
        elif normal is None:
            is_held = False
        usable = normal == "" or (normal is not None and is_held)
        own.append(OwnLayer(diff_id=diff_id, normal=normal if usable else None))
    return own


@contextmanager
def readable_layers(
    ui: Console,
    client: docker.DockerClient,
    image: str,
    base: Sequence[str],
    wanted: Sequence[str],
) -> Iterator[tuple[Mapping[str, RawLayer], str]]:
    """Give layers of an image and how they are read: from the engine's folders, else from its save stream."""
    if not wanted:
        yield {}, "nothing"
        return
    folders = layer_folders(client, image)
    if folders is not None:
        yield {diff_id: folders[diff_id] for diff_id in wanted}, "the engine's folders"
        return
    spool = cache_dir() / "archive"
    spool.mkdir(parents=True, exist_ok=True)
    known = file_names.load()
    with ui.progress("save", None) as advance:
        chunks = client.api.get_image(image, chunk_size=SAVE_CHUNK_BYTES)
        stream = cast(BinaryIO, ChunkReader(iter(chunks), advance))
        most = _most_bytes(client, image, len(base))
        try:
            saved = read_saved(
                stream, base=base, wanted=wanted, known=known, spool_dir=spool, spool_up_to=most
            )
        except ImageError:
            file_names.forget()  # it may be a name that was learnt wrongly
            raise
    with saved:
        file_names.remember({**known, **saved.names})
        yield saved.layers, "the engine's save stream"


def _most_bytes(client: docker.DockerClient, image: str, base_layers: int) -> int:
    """Give what no layer above the base can exceed as a tar, by the sizes that the engine tells."""
    facts = client.images.get(image)
    own = len(facts.attrs["RootFS"].get("Layers") or ()) - base_layers
    sizes = [int(entry["Size"]) for entry in facts.history() if entry["Size"]][: max(own, 1)]
    return 2 * max(sizes, default=0) + (1 << 30)  # headers take 1.5 kB a file, the names some more


def _counted(archive: NormalArchive, advance: Any) -> Iterator[bytes]:
    for chunk in archive.chunks():
        advance(len(chunk))
        yield chunk


def _check(client: docker.DockerClient, archive: NormalArchive, raw: RawImage) -> None:
    """Raise unless the engine now holds exactly the image that was written, on the base's own layers."""
    found = _layers(client, archive.image_id) if _is_there(client, archive.image_id) else ()
    if found != archive.diff_ids or found[: len(raw.base)] != raw.base:
        raise ImageError(
            found=f"after the load the engine holds {archive.image_id} with layers {', '.join(found) or 'none'}",
            expected=", ".join(archive.diff_ids),
            remedy="look at the engine's log and free disk space, then run ./inv build-image again",
        )


def _is_there(client: docker.DockerClient, image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def _layers(client: docker.DockerClient, image: str) -> tuple[str, ...]:
    return tuple(client.images.get(image).attrs["RootFS"].get("Layers") or ())
