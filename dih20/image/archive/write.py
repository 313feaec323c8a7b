"""Write an image as an archive that `docker load` takes, without the layers the receiver holds.

The engine's own `docker save` stream is read once, in bounded memory, and rewritten: only the
image's configuration, the wanted layers and one manifest stay. Older engines name a layer's file
by something other than its diff id, so such a file is hashed before it can be left out; the name
is remembered, because it is derived from the content, and next time it is skipped unread.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from dih20.errors import ImageError
from dih20.image.archive import names
from dih20.image.archive.delta import Delta
from dih20.image.archive.partial import PartialFile
from dih20.image.archive.streams import (
    BLOCK_BYTES,
    ChunkReader,
    CountingWriter,
    HashingReader,
    HashingWriter,
    blocks,
)

if TYPE_CHECKING:
    import docker

ZSTD_LEVEL = 3
SAVE_CHUNK_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive on disk. `raw_bytes` is its size before compression."""

    path: Path
    sha256: str
    size_bytes: int
    raw_bytes: int
    image_id: str
    tags: tuple[str, ...]
    complete: bool
    sent: tuple[str, ...]
    skipped: tuple[str, ...]


def write_archive(
    client: docker.DockerClient,
    delta: Delta,
    out: Path,
    *,
    advance: Callable[[float], None] | None = None,
) -> Archive:
    """Write the archive of a delta to `out` (zstd) and give its hash and sizes."""
    import zstandard

    layers = delta.layers
    reference = layers.tags[0] if layers.tags else layers.image_id
    chunks = client.api.get_image(reference, chunk_size=SAVE_CHUNK_BYTES)
    source = ChunkReader(iter(chunks), advance)
    with PartialFile(out) as target:
        hashed = HashingWriter(target)
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=2)
        with compressor.stream_writer(cast(BinaryIO, hashed), closefd=False) as squeezed:
            counted = CountingWriter(cast(BinaryIO, squeezed))
            if delta.verbatim:
                for block in blocks(cast(BinaryIO, source)):
                    counted.write(block)
            else:
                _Rewriter(delta=delta, spool_dir=out.parent).run(source, counted)
    return Archive(
        path=out,
        sha256=hashed.sha256,
        size_bytes=hashed.size_bytes,
        raw_bytes=counted.size_bytes,
        image_id=layers.image_id,
        tags=layers.tags,
        complete=not delta.skip,
        sent=delta.send,
        skipped=delta.skip,
    )


@dataclass(kw_only=True)
class _Rewriter:
    """One pass over a `docker save` stream."""

    delta: Delta
    spool_dir: Path
    written: dict[str, str] = field(default_factory=dict)  # diff id -> member name
    known: dict[str, str] = field(default_factory=names.load)  # member name -> diff id
    has_config: bool = False

    def run(self, source: ChunkReader, target: CountingWriter) -> None:
        with tarfile.open(
            fileobj=cast(BinaryIO, target),
            mode="w|",
            format=tarfile.PAX_FORMAT,
            bufsize=BLOCK_BYTES,
        ) as out:
            stream = cast(BinaryIO, source)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES) as saved:
                for member in saved:
                    if member.isreg():
                        self._member(saved, member, out)
            for _ in blocks(stream):  # the engine ends its answer only when all of it was read
                pass
            self._check()
            _add_bytes(out, "manifest.json", json.dumps([self._manifest()]).encode())
        names.remember(self.known)

    def _member(
        self, saved: tarfile.TarFile, member: tarfile.TarInfo, out: tarfile.TarFile
    ) -> None:
        image_hex = self.delta.layers.image_id.removeprefix("sha256:")
        if member.name in (f"{image_hex}.json", f"blobs/sha256/{image_hex}"):
            _add_bytes(out, f"{image_hex}.json", _content(saved, member).read())
            self.has_config = True
            return
        diff_id = self._diff_id(member.name)
        if not member.name.endswith("/layer.tar") and diff_id not in self.delta.layers.diff_ids:
            return  # version files and indexes of the save format
        if diff_id is not None and diff_id not in self.delta.send:
            return
        hashed = HashingReader(_content(saved, member))
        if diff_id is not None or not self.delta.skip:
            _add_stream(out, member.name, member.size, cast(BinaryIO, hashed))
            self._written(member.name, hashed.digest)
            return
        with tempfile.TemporaryFile(dir=self.spool_dir) as spool:
            for block in blocks(cast(BinaryIO, hashed)):
                spool.write(block)
            self.known[member.name] = hashed.digest
            if hashed.digest in self.delta.send:
                spool.seek(0)
                _add_stream(out, member.name, member.size, spool)
                self._written(member.name, hashed.digest)

    def _diff_id(self, member_name: str) -> str | None:
        prefix, _, hex_digest = member_name.rpartition("/")
        if prefix == "blobs/sha256":
            return f"sha256:{hex_digest}"
        return self.known.get(member_name)

    def _written(self, member_name: str, diff_id: str) -> None:
        expected = self._diff_id(member_name)
        if expected is not None and expected != diff_id:
            names.forget()
            raise ImageError(
                found=f"layer {member_name} of the engine's save stream hashes to {diff_id}",
                expected=f"{expected}, from its name",
                remedy="repeat; if it happens again, the engine's store is damaged: ./inv build-image after a prune",
            )
        self.known[member_name] = diff_id
        self.written[diff_id] = member_name

    def _check(self) -> None:
        missing = [diff_id for diff_id in self.delta.send if diff_id not in self.written]
        if missing or not self.has_config:
            raise ImageError(
                found="the engine's save stream ended without "
                + ", ".join(
                    [*missing, *([] if self.has_config else ["the image's configuration"])]
                ),
                expected="every wanted layer and the configuration of the image",
                remedy="look at the engine's log and free disk space, then repeat",
            )

    def _manifest(self) -> dict[str, object]:
        """Name a file for every layer, also for those left out: the receiver has them by chain id."""
        layers = self.delta.layers
        absent = {
            diff_id: diff_id.removeprefix("sha256:") + "/layer.tar" for diff_id in self.delta.skip
        }
        return {
            "Config": layers.image_id.removeprefix("sha256:") + ".json",
            "RepoTags": list(layers.tags) or None,
            "Layers": [(self.written | absent)[diff_id] for diff_id in layers.diff_ids],
        }


def _content(saved: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    content = saved.extractfile(member)
    assert content is not None, f"{member.name} is not a regular file"
    return cast(BinaryIO, content)


def _add_bytes(out: tarfile.TarFile, name: str, content: bytes) -> None:
    _add_stream(out, name, len(content), io.BytesIO(content))


def _add_stream(out: tarfile.TarFile, name: str, size_bytes: int, content: BinaryIO) -> None:
    entry = tarfile.TarInfo(name)  # owner, mode and time stay at their fixed defaults
    entry.size = size_bytes
    out.copybufsize = BLOCK_BYTES  # type: ignore[attr-defined]  # its default makes 16 KiB writes
    out.addfile(entry, content)
