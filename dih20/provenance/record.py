"""The record that every wheel carries in its dist-info folder: what it was made from, in full.

It holds what decides the wheel's bytes and nothing else, so that it never makes two builds differ:
times, machines and image ids are in the statement that lies beside the wheel in the store.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dih20.errors import UsageError

MEMBER: Final = "dih20-provenance.json"  # below NAME-VERSION.dist-info/
Role = Literal["source", "requirement", "header", "toolkit"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Input(_Frozen):
    """A file that the build read. The hash is left out where only the version decides."""

    role: Role
    name: str
    version: str
    filename: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Source(_Frozen):
    """The tree before patches: hash is that of the sdist, the commit, or the folder's content."""

    kind: Literal["sdist", "git", "path", "folder"]
    name: str
    version: str
    hash: str


class Edit(_Frozen):
    """A patch or edit, with its whole text."""

    id: str
    sha256: str
    text: str


class Record(_Frozen):
    """What a wheel was made from."""

    format: Literal[1] = 1
    name: str
    identity: str
    parts: dict[str, str]
    source: Source
    patchset: str
    edits: tuple[Edit, ...]
    recipe: dict[str, Any]
    environment: dict[str, str]
    inputs: tuple[Input, ...]

    def as_bytes(self) -> bytes:
        """Give the file's content: sorted, so that equal records are equal bytes."""
        plain = self.model_dump(mode="json", exclude_none=True)
        return (json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_record(wheel: Path) -> Record:
    """Give the record inside a wheel file; nothing but the file is needed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [n for n in archive.namelist() if n.endswith(f".dist-info/{MEMBER}")]
            if len(members) != 1:
                raise _without(wheel, f"holds {len(members)} of {MEMBER}")
            return Record.model_validate_json(archive.read(members[0]))
    except (OSError, zipfile.BadZipFile) as fault:
        raise UsageError(
            found=f"{wheel} cannot be read as a wheel: {fault}",
            expected="a .whl file",
            remedy="name a wheel of the store (wheels/IDENTITY/*.whl)",
        ) from fault
    except ValidationError as fault:
        raise _without(wheel, f"holds a {MEMBER} of another form: {fault.errors()[0]}") from fault


def _without(wheel: Path, why: str) -> UsageError:
    return UsageError(
        found=f"{wheel.name} {why}",
        expected=f"exactly one in its dist-info folder, as ./inv build-vendor writes it (format {Record.model_fields['format'].default})",
        remedy="build the wheel with this version of the tool; another's wheel cannot be explained",
    )
