"""safetensors files, written tensor by tensor and read piece by piece, so that memory stays bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from dih20.errors import DumpUnusable

_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
}
_TORCH = {name: dtype for dtype, name in _DTYPES.items()}
_RESERVED = 64 << 10  # room for the header in front of the data; a longer one moves the data
_COPY = 8 << 20


class TensorFileWriter:
    """Write tensors as they come; the file appears under its name when it is complete.

    Data goes to disk at once. The header is written last, into room kept free for it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._part = path, path.with_name(path.name + ".part")
        self._file = self._part.open("wb+")
        self._file.write(bytes(8 + _RESERVED))
        self._entries: dict[str, Any] = {}
        self._end = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Append a tensor; it is stored contiguous, in its own dtype."""
        assert name not in self._entries, f"{name} is in {self.path.name} already"
        raw = tensor.detach().contiguous().cpu().flatten()
        data = raw.view(torch.uint8).numpy() if raw.numel() else None
        start = self._end
        if data is not None:
            self._file.write(memoryview(data))
            self._end += data.nbytes
        self._entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, self._end],
        }

    def close(self) -> None:
        """Write the header and give the file its name."""
        header = json.dumps(self._entries, separators=(",", ":")).encode()
        room = _RESERVED
        if len(header) > room:
            room = (len(header) + 7) // 8 * 8
            self._move_data(by=room - _RESERVED)
        self._file.seek(0)
        self._file.write(room.to_bytes(8, "little") + header.ljust(room))
        self._file.close()
        self._part.rename(self.path)

    def abandon(self) -> None:
        """Remove what was written: nothing half-made stays behind."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _move_data(self, *, by: int) -> None:
        first = 8 + _RESERVED
        position = first + self._end
        while position > first:
            size = min(_COPY, position - first)
            position -= size
            self._file.seek(position)
            piece = self._file.read(size)
            self._file.seek(position + by)
            self._file.write(piece)

    def __enter__(self) -> TensorFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class TensorFile:
    """A safetensors file: its header is read and checked at once, its data only when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries, self._data = _read_header(path)

    def read(self, name: str) -> torch.Tensor:
        """Give a whole tensor."""
        entry = self.entries[name]
        pieces = list(self.pieces(name, max_elements=1 << 62))
        dtype = _TORCH[entry["dtype"]]
        flat = pieces[0] if pieces else torch.empty(0, dtype=dtype)
        return flat.view(entry["shape"])

    def pieces(self, name: str, max_elements: int) -> Iterator[torch.Tensor]:
        """Give a tensor's elements in order, flat, at most max_elements at a time."""
        entry = self.entries[name]
        dtype = _TORCH[entry["dtype"]]
        start, end = entry["data_offsets"]
        step = min(max_elements * dtype.itemsize, max(end - start, 1))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._data + start)
            for begin in range(start, end, step):
                buffer = bytearray(min(step, end - begin))
                view = memoryview(buffer)
                while len(view):
                    got = file.readinto(view)
                    if not got:
                        raise _broken(self.path, "the data ends before the header says")
                    view = view[got:]
                yield torch.frombuffer(buffer, dtype=dtype)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= size - 8:
                raise _broken(path, f"a header of {length} bytes in a file of {size}")
            entries: dict[str, Any] = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except FileNotFoundError as missing:
        raise DumpUnusable(
            found=f"{path} does not exist",
            expected="the tensors of every step that the dump's index names",
            remedy="copy the whole dump folder, or dump the run again",
        ) from missing
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as broken:
        raise _broken(path, f"the header is not readable: {broken}") from broken
    if size != 8 + length + end:
        raise _broken(path, f"{size} bytes, the header describes {8 + length + end}")
    return entries, 8 + length


def _broken(path: Path, why: str) -> DumpUnusable:
    return DumpUnusable(
        found=f"{path} is not a whole safetensors file: {why}",
        expected="a file as the capture wrote it",
        remedy="copy the file again and compare sizes, or dump the run again",
    )
