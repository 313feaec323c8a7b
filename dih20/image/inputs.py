"""What a step sees under /mnt: its script, the files it calls, locked files, generated facts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import ImageError
from dih20.fetch import cached
from dih20.image.headers import header_facts
from dih20.image.steps import Group, Step, file_hash
from dih20.lock import Base, Lock, LockedFile

_NEVER_IN_PIP_GROUPS = re.compile(r"torch$|flash-attn")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One file under /mnt: from a locked file, from a path of the repository, or generated text."""

    name: str  # relative to /mnt
    sha256: str
    locked: LockedFile | None = None
    path: Path | None = None
    text: str | None = None

    def source(self) -> Path | None:
        """Give the file to copy from; the locked one is verified by this."""
        return cached(self.locked) if self.locked else self.path


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """All inputs of a step, and the named parts of its cache key."""

    files: tuple[Input, ...]
    parts: dict[str, str]

    @property
    def debs(self) -> tuple[LockedFile, ...]:
        """Give the packages among them: what the step may install."""
        return tuple(f.locked for f in self.files if f.locked and f.locked.kind == "deb")

    def deb_files(self) -> list[tuple[LockedFile, Path]]:
        """Give the packages with their verified files."""
        return [(deb, cached(deb)) for deb in self.debs]


def inputs_of(step: Step, lock: Lock, base: Base) -> StepInputs:
    """Give what a step sees and the hash of each part, without touching any locked file."""
    files = [Input(name="step.sh", sha256=file_hash(step.script), path=step.script)]
    files += [Input(name=f"lib/{p.name}", sha256=file_hash(p), path=p) for p in step.uses]
    parts = step.own_hashes()
    for group in step.inputs:
        members = files_of(group, lock, base)
        files += [Input(name=f"{group}/{m.filename}", sha256=m.sha256, locked=m) for m in members]
        parts[f"input {group}"] = _digest([f"{m.filename} {m.sha256}" for m in members])
        if group in ("debs", "serve-cpu"):
            files.append(_text(f"{group}/SHA256SUMS", _sums(members)))
        if group in ("nccl", "requirements"):
            files.append(_text(f"{group}/requirements.txt", _requirements(group, members)))
    used = {path.name for path in step.uses}
    if "nccl.py" in used:
        files.append(_text("nccl.version", lock.nccl().version + "\n"))
        parts["nccl version"] = lock.nccl().version
    if "headers.py" in used:
        files.append(_text("headers.json", json.dumps(header_facts(lock), sort_keys=True)))
        parts["header facts"] = files[-1].sha256
    if step.env:
        parts["env"] = _digest([f"{name}={value}" for name, value in sorted(step.env.items())])
    return StepInputs(files=tuple(files), parts=parts)


def files_of(group: Group, lock: Lock, base: Base) -> list[LockedFile]:
    """Give the locked files of a group for a base."""
    match group:
        case "debs":
            return lock.debs(base.name)
        case "headers":
            return lock.header_wheels()
        case "nccl":
            return [lock.nccl()]
        case "requirements":
            return lock.requirements(base.python_tag)
        case "serve-cpu":
            return lock.variant_debs(base.name, group)


def _requirements(group: str, files: Sequence[LockedFile]) -> str:
    """Write a pip requirements file with a hash for each: pip may take these files and no others."""
    for file in files:
        if _NEVER_IN_PIP_GROUPS.match(file.name):
            raise ImageError(
                found=f"the lock lists {file} under {group}",
                expected="no torch and no flash-attn there: the base's torch is never moved",
                remedy="add it to requirements: without: in configs/images, then ./inv lock --only requirements",
            )
    return "".join(f"{file.name}=={file.version} --hash=sha256:{file.sha256}\n" for file in files)


def _sums(files: Sequence[LockedFile]) -> str:
    """Write what `sha256sum --check` reads: a step looks once more, where the packages are used."""
    return "".join(f"{file.sha256}  {file.filename}\n" for file in files)


def _text(name: str, text: str) -> Input:
    return Input(name=name, sha256=hashlib.sha256(text.encode()).hexdigest(), text=text)


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
