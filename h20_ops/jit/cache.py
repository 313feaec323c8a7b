"""A folder of compiled kernels that several processes may fill at the same time.

One artefact is one folder `<name>-<source key>-<toolchain key>` holding the files its builder gave.
It is written beside its final name and renamed into place under a lock per key, so a reader sees
either nothing or all of it. Where no toolchain is installed, any artefact of the same source serves.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h20_ops.errors import DependencyError

KEY_LENGTH = 20


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A finished build: the folder and whether this call had to build it."""

    path: Path
    built: bool

    def read(self, file_name: str) -> bytes:
        return (self.path / file_name).read_bytes()


def cache_dir() -> Path:
    """The folder artefacts are kept in: `H20_OPS_CACHE_DIR`, else `~/.cache/h20_ops`."""
    configured = os.environ.get("H20_OPS_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "h20_ops"


def hash_parts(*parts: str | bytes) -> str:
    """Hash a list of strings so that moving a character between two of them changes the result."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:KEY_LENGTH]


def get_or_build(
    name: str,
    source_key: str,
    toolchain: str | None,
    build: Callable[[], Mapping[str, bytes]],
) -> Artefact:
    """Return the artefact of a source, building it at most once however many processes ask.

    `toolchain` is the compiler's version text, None where there is no compiler: then the newest
    artefact of the same source is taken, and DependencyError is raised if there is none.
    """
    folder = cache_dir()
    if toolchain is None:
        return _any_toolchain(folder, name, source_key)
    final = folder / f"{name}-{source_key}-{hash_parts(toolchain)}"
    if final.is_dir():
        return Artefact(path=final, built=False)
    _make_writable(folder)
    with _locked(folder / f".lock-{final.name}"):
        if final.is_dir():
            return Artefact(path=final, built=False)
        files = {**build(), "toolchain.txt": toolchain.encode()}
        _write(folder, final, files)
    return Artefact(path=final, built=True)


def export_artefacts(archive: Path, names: list[str] | None = None) -> list[str]:
    """Pack the artefacts (all, or those of these kernel names) for a host without nvcc."""
    folder = cache_dir()
    chosen = [
        path
        for path in sorted(folder.glob("*-*-*"))
        if path.is_dir() and (names is None or path.name.rsplit("-", 2)[0] in names)
    ]
    if not chosen:
        raise DependencyError(
            f"no artefact of {names or 'any kernel'} in {folder}",
            "kernels compiled earlier on this machine",
            "run the operators once here, then export again",
        )
    with tarfile.open(archive, "w:gz") as tar:
        for path in chosen:
            tar.add(path, arcname=path.name)
    return [path.name for path in chosen]


def import_artefacts(archive: Path) -> list[str]:
    """Unpack an exported archive into the cache; artefacts already there are left alone."""
    folder = cache_dir()
    _make_writable(folder)
    added = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".import-") as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except (OSError, tarfile.TarError) as error:
            raise DependencyError(
                f"{archive} cannot be unpacked: {error}",
                "an archive written by h20_ops.jit.export_artefacts",
                "copy it here again, or export it again",
            ) from error
        for path in sorted(Path(scratch).iterdir()):
            with _locked(folder / f".lock-{path.name}"):
                if not (folder / path.name).exists():
                    path.rename(folder / path.name)
                    added.append(path.name)
    return added


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise DependencyError(
            f"compiled kernels cannot be kept in {folder}",
            "a folder this user can create and write",
            "set H20_OPS_CACHE_DIR to one",
        )


def _any_toolchain(folder: Path, name: str, source_key: str) -> Artefact:
    found = sorted(folder.glob(f"{name}-{source_key}-*"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise DependencyError(
            f"nvcc is not installed and {folder} holds no build of {name} (key {source_key})",
            "nvcc 12.4 or newer, or an archive made by export_artefacts from these sources",
            "install CUDA's nvcc (set CUDA_HOME), or call h20_ops.jit.import_artefacts",
        )
    return Artefact(path=found[-1], built=False)


def _write(folder: Path, final: Path, files: Mapping[str, bytes]) -> None:
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".build-"))
    try:
        for file_name, data in files.items():
            (scratch / file_name).write_bytes(data)
        scratch.chmod(0o755)
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
