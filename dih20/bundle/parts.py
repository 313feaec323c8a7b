"""Write entries as one compressed tar, cut into numbered parts: the same entries give the same bytes.

The tar is cut into blocks and each block is compressed by itself, so that all cores can work; the
results follow one another in order, which xz reads as one file. A group begins a block, so what did
not change since an earlier bundle is found compressed already.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dih20.bundle.entries import Entry
from dih20.source_date import SOURCE_DATE_EPOCH

BLOCK = 64 << 20
PREFIX = "di-h20.part-"


@dataclass
class Splitter:
    """Takes a stream of bytes and leaves parts of one size, with the hash of each and of all."""

    folder: Path
    part_size: int
    parts: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._whole = hashlib.sha256()
        self._size = 0
        self._part: BinaryIO | None = None
        self._name, self._digest, self._filled = "", hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self._whole.update(data)
        self._size += len(data)
        view = memoryview(data)
        while view:
            if self._part is None:
                self._name = f"{PREFIX}{len(self.parts) + 1:03d}"
                self._part = (self.folder / self._name).open("wb")
                self._digest, self._filled = hashlib.sha256(), 0
            piece = view[: self.part_size - self._filled]
            self._part.write(piece)
            self._digest.update(piece)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == self.part_size:
                self._close_part()

    def close(self) -> dict[str, Any]:
        """Give size and hash of everything written."""
        self._close_part()
        return {"sha256": self._whole.hexdigest(), "size_bytes": self._size}

    def _close_part(self) -> None:
        if self._part is None:
            return
        self._part.close()
        self._part = None
        digest = self._digest.hexdigest()
        self.parts.append({"name": self._name, "size_bytes": self._filled, "sha256": digest})


class BlockCompressor:
    """A file to write a tar to: full blocks are compressed side by side and handed on in order.

    Args:
        known: folder of compressed blocks by the hash of what is in them; None to keep none.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        level: int,
        workers: int = 0,
        known: Path | None = None,
    ) -> None:
        self._write, self._level, self._known = write, level, known
        self._workers = workers or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers)
        self._pending: deque[Future[bytes]] = deque()
        self._block = bytearray()
        self._size = 0

    def write(self, data: bytes) -> int:
        self._size += len(data)
        self._block += data
        while len(self._block) >= BLOCK:
            self._submit(bytes(self._block[:BLOCK]))
            del self._block[:BLOCK]
        return len(data)

    def tell(self) -> int:
        return self._size

    def end_block(self) -> None:
        """Let what follows begin a block."""
        if self._block:
            self._submit(bytes(self._block))
            self._block.clear()

    def close(self) -> None:
        self.end_block()
        while self._pending:
            self._write(self._pending.popleft().result())
        self._pool.shutdown()

    def _submit(self, block: bytes) -> None:
        self._pending.append(self._pool.submit(self._packed, block))
        while len(self._pending) > 2 * self._workers:
            self._write(self._pending.popleft().result())

    def _packed(self, block: bytes) -> bytes:
        if self._known is None:
            return lzma.compress(block, preset=self._level)
        path = self._known / f"{hashlib.sha256(block).hexdigest()}-{self._level}.xz"
        try:
            packed = path.read_bytes()
            if lzma.decompress(packed) == block:
                os.utime(path)
                return packed
        except (FileNotFoundError, lzma.LZMAError):
            pass  # not there, or spoiled: made anew
        packed = lzma.compress(block, preset=self._level)
        self._known.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._known, delete=False) as fresh:
            fresh.write(packed)
        Path(fresh.name).replace(path)
        return packed


def forget_old_blocks(known: Path, days: int = 30) -> None:
    """Remove blocks that no bundle has used for so long."""
    oldest = time.time() - days * 86_400
    for path in known.glob("*"):
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)


class _Hashed:
    """Reads an entry's content and hashes what passes."""

    def __init__(self, inner: BinaryIO, digest: Any) -> None:
        self._inner, self._digest = inner, digest

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(size)
        self._digest.update(data)
        return data


def write_archive(
    entries: Iterable[Entry], target: BlockCompressor, advance: Callable[[float], None]
) -> dict[str, dict[str, Any]]:
    """Write the tar and give, for each group, how many files and bytes it has and their hash."""
    groups: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as out:  # type: ignore[call-overload]
        for entry in entries:
            if entry.group not in groups:
                target.end_block()
            group = groups.setdefault(
                entry.group, {"files": 0, "size_bytes": 0, "sha256": hashlib.sha256()}
            )
            member = tarfile.TarInfo(entry.name)
            member.mtime = SOURCE_DATE_EPOCH
            member.mode = 0o755 if entry.executable else 0o644
            member.size = entry.size
            group["files"] += 1
            group["size_bytes"] += entry.size
            group["sha256"].update(f"{entry.name}\0{entry.executable}\0{entry.link}\0".encode())
            if entry.link:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
                out.addfile(member)
                continue
            with entry.open() as content:
                out.addfile(member, _Hashed(content, group["sha256"]))
            advance(entry.size)
    return {
        name: {**group, "sha256": group["sha256"].hexdigest()} for name, group in groups.items()
    }
