"""The byte streams an archive passes through: chunks to file, file to hash to zstd, spool."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from typing import BinaryIO

# Ten times faster than a megabyte: the allocator keeps blocks of this size instead of giving each back
# to the kernel, which would clear its pages anew.
BLOCK_BYTES = 256 << 10


class ChunkReader(io.RawIOBase):
    """Present an iterator of chunks as a readable file; `advance` hears how many bytes went by."""

    def __init__(
        self, chunks: Iterator[bytes], advance: Callable[[float], None] | None = None
    ) -> None:
        self._chunks = chunks
        self._chunk, self._at = b"", 0
        self._advance = advance
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Give up to `size` bytes, less only at the end: tar readers do not ask twice."""
        parts: list[bytes] = []
        wanted = size if size >= 0 else 1 << 62
        while wanted:
            if self._at == len(self._chunk):
                self._chunk, self._at = next(self._chunks, b""), 0
                if not self._chunk:
                    break
                self.bytes_read += len(self._chunk)
                if self._advance:
                    self._advance(len(self._chunk))
            part = self._chunk[self._at : self._at + wanted]
            self._at += len(part)
            wanted -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class CountingWriter(io.RawIOBase):
    """Write through to a file, and know how much was written."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        block = bytes(data)  # type: ignore[call-overload]
        self._target.write(block)
        self.size_bytes += len(block)
        return len(block)


class HashingWriter(CountingWriter):
    """Write through to a file, and know the sha256 and size of all that was written."""

    def __init__(self, target: BinaryIO) -> None:
        super().__init__(target)
        self._hash = hashlib.sha256()

    def write(self, data: object) -> int:
        self._hash.update(data)  # type: ignore[arg-type]
        return super().write(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class HashingReader(io.RawIOBase):
    """Read through from a file, and know the sha256 of all that was read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._source.read(size)
        self._hash.update(block)
        return block

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def blocks(source: BinaryIO) -> Iterator[bytes]:
    """Give a file in blocks of bounded size."""
    while block := source.read(BLOCK_BYTES):
        yield block
