"""The wheel store: wheels/<identity>/ holds one wheel, wheel.json and the wheel's SLSA statement, and nothing else.

An entry appears by one rename, so a build that was stopped leaves none. An entry is never edited,
except that verdicts may be read again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dih20.errors import WheelError
from dih20.paths import shown, wheel_store
from dih20.wheels.identity import Parts, differences

RECORD = "wheel.json"
STATEMENT = ".intoto.json"  # after the wheel's file name


@dataclass(frozen=True, kw_only=True)
class StoredWheel:
    """A wheel in the store, what it was made from and what the inspector said of it."""

    path: Path
    name: str
    version: str
    tags: tuple[str, ...]
    sha256: str
    identity: str
    parts: dict[str, str]
    verdicts: tuple[dict[str, str], ...]
    size_bytes: int
    build: dict[str, Any] = field(default_factory=dict)  # seconds, jobs, peak memory, image, date

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "path": self.path.name}


class Store:
    """Look up, add and list wheels.

    Example:
        store = Store()                          # DI_WHEELS, else wheels/
        wheel = store.find(parts.identity) or store.add(built, ...)
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or wheel_store()

    def find(self, identity: str) -> StoredWheel | None:
        """Give the wheel of exactly this identity; a damaged entry is an error, never a miss."""
        folder = self.root / identity
        if not folder.is_dir():
            return None
        wheel = self._read(folder)
        if sha256_of(wheel.path) != wheel.sha256:
            raise _damaged(folder, f"{wheel.path.name} is not the file that was stored (sha256)")
        return wheel

    def wheels(self) -> Iterator[StoredWheel]:
        """Give every stored wheel."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                yield self._read(folder)

    def why_missing(self, name: str, parts: Parts) -> str:
        """Say why there is no hit: never built, or what changed against the nearest stored wheel."""
        known = [wheel for wheel in self.wheels() if wheel.name == name]
        if not known:
            return "never built"
        wanted = parts.as_dict()
        nearest = min(known, key=lambda w: len(differences(w.parts, wanted)))
        return "; ".join(differences(nearest.parts, wanted))

    def add(
        self,
        built: Path,
        *,
        name: str,
        parts: Parts,
        verdicts: list[dict[str, str]],
        build: dict[str, Any],
        statement: dict[str, Any] | None = None,
    ) -> StoredWheel:
        """Put a built wheel into the store under its identity, its statement beside it.

        An entry that is there stays, as another build may have taken its wheel already: it is given then.
        """
        from packaging.utils import parse_wheel_filename

        _, version, _, tags = parse_wheel_filename(built.name)
        self.root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".adding-", dir=self.root))
        final = self.root / parts.identity
        try:
            shutil.copyfile(built, draft / built.name)
            wheel = StoredWheel(
                path=final / built.name,
                name=name,
                version=str(version),
                tags=tuple(sorted(str(tag) for tag in tags)),
                sha256=sha256_of(built),
                identity=parts.identity,
                parts=parts.as_dict(),
                verdicts=tuple(verdicts),
                size_bytes=built.stat().st_size,
                build=build,
            )
            text = json.dumps(wheel.record(), indent=2, ensure_ascii=False) + "\n"
            (draft / RECORD).write_text(text, encoding="utf-8")
            if statement is not None:
                said = json.dumps(statement, indent=1, ensure_ascii=False) + "\n"
                (draft / f"{built.name}{STATEMENT}").write_text(said, encoding="utf-8")
            draft.chmod(0o755)
            try:
                draft.replace(final)
            except OSError:  # what a folder that is not empty answers depends on the file system
                if (stored := self.find(parts.identity)) is None:
                    raise
                return stored
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return wheel

    def _read(self, folder: Path) -> StoredWheel:
        record = folder / RECORD
        try:
            data = json.loads(record.read_text(encoding="utf-8"))
            wheel = StoredWheel(
                **{
                    **data,
                    "path": folder / data["path"],
                    "tags": tuple(data["tags"]),
                    "verdicts": tuple(data["verdicts"]),
                }
            )
        except (OSError, ValueError, TypeError, KeyError) as fault:
            raise _damaged(folder, f"{RECORD} cannot be read: {fault}") from fault
        if not wheel.path.is_file() or wheel.path.stat().st_size != wheel.size_bytes:
            raise _damaged(folder, f"{wheel.path.name} is not there in full")
        return wheel


def sha256_of(path: Path) -> str:
    """Give a file's sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(folder: Path, why: str) -> WheelError:
    return WheelError(
        found=f"the store entry {shown(folder)} is damaged: {why}",
        expected="one wheel and its wheel.json, as the build left them",
        remedy=f"remove {shown(folder)}, then run ./inv build-vendor again",
    )
