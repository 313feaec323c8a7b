"""Take our own layers out of a `docker save` stream, which is read once and in bounded memory.

The base's layers, most of the bytes, go by: one whose file name is known is skipped unread, any
other is hashed, and must be one that the image has. Ours are spooled to disk, since a layer is read
twice: its members are put in order.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from dih20.errors import ImageError
from dih20.image.archive.raw_layer import TarLayer
from dih20.image.archive.streams import BLOCK_BYTES, HashingReader, blocks

_SMALL = 16 << 20  # configurations and manifests; no layer that holds anything is read whole


@dataclass(kw_only=True)
class SavedLayers:
    """What one pass over a save stream gave. A context manager: the spooled files end with it."""

    diff_ids: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)  # file name in the stream -> diff id
    layers: dict[str, TarLayer] = field(default_factory=dict)
    read_bytes: int = 0
    hashed_base: set[str] = field(default_factory=set)
    _files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> SavedLayers:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def keep(self, diff_id: str, spool: BinaryIO) -> None:
        self._files.callback(spool.close)
        self.layers[diff_id] = TarLayer(spool)


def read_saved(
    stream: BinaryIO,
    *,
    base: Sequence[str],
    wanted: Collection[str],
    known: Mapping[str, str],
    spool_dir: Path,
    spool_up_to: int = 1 << 62,
) -> SavedLayers:
    """Read a save stream to its end.

    Args:
        base: diff ids of the base; the image must begin with them.
        wanted: diff ids of the layers to keep.
        known: file names of the stream whose diff id was learnt before.
        spool_up_to: a layer of more bytes cannot be wanted, and is hashed without being kept.
    """
    saved = SavedLayers()
    texts: dict[str, bytes] = {}
    with contextlib.ExitStack() as broken_off:
        broken_off.callback(saved._files.close)
        with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES) as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every entry it has seen
                if not member.isreg():
                    continue
                told = _told(member.name, known)
                if told in wanted or told in base or _is_layer(member):
                    spool = spool_dir if member.size <= spool_up_to else None
                    _take(saved, tar, member, told, wanted, base, spool)
                elif member.size <= _SMALL:
                    texts[member.name] = _content(tar, member).read()
        for block in blocks(stream):  # the engine ends its answer only when all of it was read
            saved.read_bytes += len(block)
        _check(saved, texts, base, wanted)
        broken_off.pop_all()
    return saved


def _told(name: str, known: Mapping[str, str]) -> str | None:
    """Give the diff id that a file's name stands for: learnt before, or the name says it."""
    prefix, _, digest = name.rpartition("/")
    return f"sha256:{digest}" if prefix == "blobs/sha256" else known.get(name)


def _is_layer(member: tarfile.TarInfo) -> bool:
    return member.name.endswith("/layer.tar") or member.size > _SMALL


def _take(
    saved: SavedLayers,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    told: str | None,
    wanted: Collection[str],
    base: Sequence[str],
    spool_dir: Path | None,
) -> None:
    saved.read_bytes += member.size
    if told is not None and told not in wanted:
        saved.names[member.name] = told
        return
    hashed = HashingReader(_content(tar, member))
    spool = None
    if spool_dir:
        spool = cast(BinaryIO, tempfile.TemporaryFile(dir=spool_dir))  # noqa: SIM115 - may outlive this
    for block in blocks(cast(BinaryIO, hashed)):
        if spool:
            spool.write(block)
    diff_id = hashed.digest
    saved.names[member.name] = diff_id
    if spool and diff_id in wanted and diff_id not in saved.layers:
        spool.flush()
        saved.keep(diff_id, spool)
        return
    if spool:
        spool.close()
    if diff_id in base:
        saved.hashed_base.add(diff_id)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    content = tar.extractfile(member)
    assert content is not None, f"{member.name} is not a regular file"
    return cast(BinaryIO, content)


def _check(
    saved: SavedLayers, texts: Mapping[str, bytes], base: Sequence[str], wanted: Collection[str]
) -> None:
    manifest = _manifest(texts)
    config = json.loads(texts.get(str(manifest["Config"]), b"{}"))
    saved.diff_ids = tuple((config.get("rootfs") or {}).get("diff_ids") or ())
    files = [str(name) for name in manifest.get("Layers") or ()]
    for name, diff_id in zip(files, saved.diff_ids, strict=False):
        if saved.names.get(name, diff_id) != diff_id:
            raise _wrong(
                f"layer {name} hashes to {saved.names[name]}", f"{diff_id}, from its configuration"
            )
    if saved.diff_ids[: len(base)] != tuple(base):
        raise _wrong(
            f"the image begins with {', '.join(saved.diff_ids[: len(base)]) or 'nothing'}",
            f"the layers of its base: {', '.join(base)}",
        )
    missing = [diff_id for diff_id in wanted if diff_id not in saved.layers]
    if missing:
        raise _wrong(f"the stream ended without {', '.join(missing)}", "every layer of the image")


def _manifest(texts: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        entries = json.loads(texts["manifest.json"])
        return dict(entries[0])
    except (KeyError, ValueError, IndexError, TypeError):
        raise _wrong("the stream holds no readable manifest.json", "one image") from None


def _wrong(found: str, expected: str) -> ImageError:
    return ImageError(
        found=f"the engine's save stream: {found}",
        expected=expected,
        remedy="repeat; if it happens again, the engine's store is damaged: ./inv build-image after a prune",
    )
