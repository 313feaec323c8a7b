"""Open a checkpoint, check it against the model's shape, and give tensors one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from v41.config import ModelConfig
from v41.errors import CheckpointError
from v41.tensors import Storage, TensorSpec, text_tensors

INDEX = "model.safetensors.index.json"
STORED_DTYPES: dict[Storage, tuple[str, ...]] = {
    "bf16": ("BF16",),
    "fp32": ("F32",),
    "fp8": ("F8_E4M3",),
    "fp4": ("I8",),
    "engram": ("F8_E4M3",),
}
_PREFIX = "model."  # some copies of the release carry it on every name


class CheckpointReader:
    """A checkpoint folder; headers are read and checked at once, data only when asked for.

    Raises CheckpointError for a missing file, a truncated shard, a missing tensor, or one of
    another shape or dtype. Tensors beyond the text model are in `extra`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw_config = _read_json(folder / "config.json")
        try:
            self.config = ModelConfig.from_hf(self.raw_config)
        except KeyError as missing:
            raise CheckpointError(
                f"{folder / 'config.json'}: no key {missing.args[0]!r}",
                "the released config.json, with the text model's keys in text_config",
                "take config.json from the same release as the shards",
            ) from missing
        self._shards = self._read_index()
        self._headers = {
            shard: _read_header(folder / shard) for shard in set(self._shards.values())
        }
        self.specs = list(text_tensors(self.config))
        for spec in self.specs:
            self._check(spec)
        known = {s.name for s in self.specs} | {s.scale_name for s in self.specs if s.scale_name}
        self.extra = sorted(set(self._shards) - known)

    def _read_index(self) -> dict[str, str]:
        weight_map = _read_json(self.folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(
                f"{self.folder / INDEX}: no weight_map",
                "an object from tensor names to shard files",
                "take the index from the same release as the shards",
            )
        return {name.removeprefix(_PREFIX): shard for name, shard in weight_map.items()}

    def _check(self, spec: TensorSpec) -> None:
        stored = spec.shape
        if spec.storage == "fp4":
            stored = (spec.shape[0], spec.shape[1] // 2)
        self._expect(spec.name, stored, STORED_DTYPES[spec.storage])
        if spec.scale_name and spec.scale_shape:
            self._expect(spec.scale_name, spec.scale_shape, ("F8_E8M0",))

    def _expect(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        wanted = f"{name} {'/'.join(dtypes)} {list(shape)}, from config.json"
        entry = self._entry(name)
        if entry is None:
            raise CheckpointError(
                f"{self.folder}: no tensor {name}",
                wanted,
                "fetch the missing shard, or take config.json from the same release",
            )
        if tuple(entry["shape"]) != shape or entry["dtype"] not in dtypes:
            raise CheckpointError(
                f"{name} is {entry['dtype']} {entry['shape']} in {self._shards[name]}",
                wanted,
                "use the released files; a converted checkpoint has other shapes",
            )

    def _entry(self, name: str) -> dict[str, Any] | None:
        shard = self._shards.get(name)
        if shard is None:
            return None
        header = self._headers[shard]
        found: dict[str, Any] | None = header.get(name) or header.get(_PREFIX + name)
        return found

    def read(self, name: str) -> torch.Tensor:
        """Give one stored tensor; e4m3 values as torch's own 8-bit type, e8m0 scales as uint8 bytes."""
        from safetensors import safe_open

        shard = self._shards[name]
        stored = name if name in self._headers[shard] else _PREFIX + name
        if self._headers[shard][stored]["dtype"] == "F8_E8M0":
            return self._read_bytes(shard, stored)
        with safe_open(self.folder / shard, framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(stored)
        return tensor

    def _read_bytes(self, shard: str, stored: str) -> torch.Tensor:
        """Give a tensor's bytes, uint8 in its stored shape: torch before 2.7 has no type for e8m0."""
        entry = self._headers[shard][stored]
        start, end = entry["data_offsets"]
        with (self.folder / shard).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            file.seek(8 + length + start)
            data = bytearray(file.read(end - start))
        return torch.frombuffer(data, dtype=torch.uint8).view(entry["shape"])

    def size_bytes(self, name: str) -> int:
        """Give a stored tensor's size without reading it."""
        entry = self._entry(name)
        assert entry is not None, f"no tensor {name}"
        start, end = entry["data_offsets"]
        return int(end) - int(start)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as missing:
        raise CheckpointError(
            f"{path} does not exist",
            "a checkpoint folder with config.json, the index and its shards",
            "give the folder that holds config.json",
        ) from missing
    except (ValueError, UnicodeDecodeError) as broken:
        raise CheckpointError(
            f"{path}: {broken}", "a JSON file", "fetch the file again"
        ) from broken
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a {type(value).__name__}", "an object", "fetch it again"
        )
    return value


def _read_header(path: Path) -> dict[str, Any]:
    """Read a shard's header and check that the file is as long as the header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if size != 8 + length + end:
            raise ValueError(f"{size} bytes, the header describes {8 + length + end}")
    except FileNotFoundError as missing:
        raise CheckpointError(
            f"{path} does not exist", "every shard that the index names", "fetch the missing shard"
        ) from missing
    except (ValueError, KeyError, TypeError) as broken:
        raise CheckpointError(
            f"{path} is not a whole safetensors file: {broken}",
            "a shard as released",
            "fetch the shard again and compare its sha256",
        ) from broken
    return header
