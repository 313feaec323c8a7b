"""Write an image in its normal form as a stream that `docker load` takes, without what the engine holds.

The base's layers are never written: the engine takes them from its own store, so they stay what
they are bit for bit. Only an engine that wants complete archives gets them, unchanged.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dih20.image.archive.normal_config import ImageFrame, image_id
from dih20.image.archive.normal_layer import NormalLayer
from dih20.image.archive.raw_layer import RawLayer


@dataclass(frozen=True, kw_only=True)
class OwnLayer:
    """One of our layers: its digest as the engine made it, and how to read it.

    `normal` is its digest in normal form when that is known and the engine holds it, so that it
    need not be read; "" when it holds nothing.
    """

    diff_id: str
    raw: RawLayer | None = None
    normal: str | None = None


@dataclass(kw_only=True)
class NormalArchive:
    """The stream, and what is known once it was read to its end.

    Example:
        archive = NormalArchive(frame=frame, base=base_diff_ids, own=own_layers)
        load_chunks(client, archive.chunks())
        archive.image_id, archive.diff_ids
    """

    frame: ImageFrame
    base: Sequence[str]
    own: Sequence[OwnLayer]
    normal: dict[str, str] = field(
        default_factory=dict
    )  # learnt: raw diff id -> normal, "" for empty
    written_bytes: int = 0
    left_out: int = 0
    image_id: str = ""
    diff_ids: tuple[str, ...] = ()

    def chunks(self) -> Iterator[bytes]:
        """Give the archive: our layers, the configuration, the manifest."""
        names = [f"{_hex(diff_id)}/layer.tar" for diff_id in self.base]
        own: list[str] = []
        for number, layer in enumerate(self.own):
            name = f"own-{number:02d}/layer.tar"
            if layer.normal is None:
                yield from self._layer(name, layer)
                own.append(self.normal[layer.diff_id])
            else:
                own.append(layer.normal)
            if own[-1]:
                names.append(name)
        config = self.frame.config_bytes(self.base, own)
        self.image_id = image_id(config)
        self.diff_ids = (*self.base, *(diff_id for diff_id in own if diff_id))
        manifest = [{"Config": f"{_hex(self.image_id)}.json", "RepoTags": None, "Layers": names}]
        yield _file(f"{_hex(self.image_id)}.json", config)
        yield _file("manifest.json", json.dumps(manifest).encode())
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _layer(self, name: str, layer: OwnLayer) -> Iterator[bytes]:
        assert layer.raw is not None, f"layer {layer.diff_id} can neither be read nor left out"
        normal = NormalLayer(layer.raw)
        self.left_out += normal.left_out
        if normal.is_empty:
            self.normal[layer.diff_id] = ""
            return
        yield file_header(name, normal.size_bytes)
        for chunk in normal.chunks():
            self.written_bytes += len(chunk)
            yield chunk
        self.normal[layer.diff_id] = normal.diff_id


def file_header(name: str, size_bytes: int) -> bytes:
    """Give the header of a file in an archive; a layer's tar ends on a block, so nothing follows it."""
    entry = tarfile.TarInfo(name)
    entry.size = size_bytes
    return entry.tobuf(tarfile.GNU_FORMAT)


def _file(name: str, content: bytes) -> bytes:
    return file_header(name, len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
