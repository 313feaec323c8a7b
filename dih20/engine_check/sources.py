"""Hashes of everything that a result depends on, part by part."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from dih20.paths import REPOSITORY

_KEPT = {".py", ".cu", ".cuh", ".yaml", ".json", ".txt", ".safetensors", ".toml", ""}
_PARTS: dict[str, tuple[str, ...]] = {
    "patchset": ("patches/sm90",),
    "h20_ops": ("h20_ops",),
    "dropins": ("dropins",),
    "v41": ("v41",),
    "engine_check": ("dih20/engine_check", "dih20/parity"),
}


def source_hashes(tree: Path | None = None) -> dict[str, str]:
    """Give a sha256 for each part, and of the engine's Python sources as `tree`.

    tree: the folder that holds the package deepinfer; the one that would be imported, if left out.
    A part that is not on this machine is "missing", which equals nothing that is; no evidence is made
    of records that have one.
    """
    found = {
        name: _hash(REPOSITORY, (REPOSITORY / folder for folder in folders))
        for name, folders in _PARTS.items()
    }
    engine = tree or engine_folder()
    found["tree"] = "missing" if engine is None else _hash(engine, [engine / "deepinfer"])
    return found


def engine_folder() -> Path | None:
    """Give the folder that the package deepinfer would be imported from; nothing is imported."""
    spec = importlib.util.find_spec("deepinfer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).parent


def _hash(root: Path, folders: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    count = 0
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(root)
            hidden = any(part == "__pycache__" or part.endswith("-info") for part in inside.parts)
            if hidden or not path.is_file() or path.suffix not in _KEPT:
                continue
            digest.update(f"{inside.as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
            count += 1
    return digest.hexdigest() if count else "missing"
