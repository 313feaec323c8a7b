"""Which pins stay: `inv lock` keeps what is still valid, `--upgrade` names what may move."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dih20.config.image import ImageConfig
from dih20.errors import UsageError
from dih20.lock.files import UNRESOLVED, LockedFile
from dih20.lock.model import Lock
from dih20.lock.wants import wanted_by


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """The lock before, and what may move: nothing, some names, or everything (None).

    Example:
        Keeping.of(lock, "git,numpy").files(lock.apt["stand-in"])      all but git and numpy
    """

    before: Lock | None = None
    moving: frozenset[str] | None = frozenset()

    @classmethod
    def of(cls, before: Lock | None, upgrade: bool | str) -> Keeping:
        """Read --upgrade: absent, without a value, or names separated by commas."""
        if isinstance(upgrade, bool):
            return cls(before=before, moving=None if upgrade else frozenset())
        names = frozenset(name.strip() for name in upgrade.split(",") if name.strip())
        return cls(before=before, moving=names)

    @property
    def is_upgrade(self) -> bool:
        return self.moving is None or bool(self.moving)

    def files(self, files: object) -> tuple[LockedFile, ...]:
        """Give the pins of a group that stay."""
        if self.moving is None or not isinstance(files, tuple):
            return ()
        return tuple(file for file in files if file.name not in self.moving)

    def packages_of(self, base: str) -> tuple[LockedFile, ...]:
        """Give the packages of a base that stay; naming the base lets all of them move."""
        if self.before is None or base not in self.before.bases or base in (self.moving or ()):
            return ()
        return self.files(self.before.bases[base].packages)

    def index_files(self) -> frozenset[tuple[str, str]]:
        """Give (file name, sha256) of every pin from a package index that stays."""
        if self.before is None:
            return frozenset()
        groups = [files for _, files in index_groups(self.before)]
        return frozenset((f.filename, f.sha256) for files in groups for f in self.files(files))

    def why(self, part: str, image: ImageConfig) -> str:
        """Give why a part must be resolved; empty when its pins stay as they are."""
        if self.before is None or part not in self.before.wants:
            return "never resolved"
        if self.before.wants[part] != wanted_by(part, image):
            return "what is wanted has changed"
        if self.moving is None:
            return "newer versions are taken"
        if asked := self.moving & names_in(part, self.before):
            return f"asked for: {', '.join(sorted(asked))}"
        if part == "ci" and self.before.is_ci_on_another_base:
            return "its base has moved"
        return "unresolved" if _is_open(part, self.before) else ""

    def check_names(self, parts: Iterable[str]) -> None:
        """Raise UsageError when --upgrade names what these parts of the lock do not hold."""
        if not self.moving:
            return
        known = {n for part in parts if self.before for n in names_in(part, self.before)}
        for name in sorted(self.moving - known):
            near = difflib.get_close_matches(name, sorted(known), n=3)
            raise UsageError(
                found=f"--upgrade: the lock holds no {name!r} in {', '.join(parts)}",
                expected="names of packages, sources or bases that are locked there"
                + (f"; near it: {', '.join(near)}" if near else ""),
                remedy="correct the name; `./inv lock --upgrade --plan` shows all that would move",
            )


def index_groups(lock: Lock) -> Iterator[tuple[str, tuple[LockedFile, ...]]]:
    """Give every group of wheels by a name that says where in the lock it stands."""
    wheels = lock.wheels
    for name in ("headers", "toolkit", "inspector", "nccl", "nccl_for_tests", "build", "torch"):
        files = getattr(wheels, name)
        if isinstance(files, dict):
            yield from ((f"wheels {name} {tag}", group) for tag, group in sorted(files.items()))
        elif files != UNRESOLVED:
            yield f"wheels {name}", files
    if isinstance(lock.python, dict):
        yield from ((f"requirements {tag}", group) for tag, group in sorted(lock.python.items()))


def names_in(part: str, lock: Lock) -> set[str]:
    """Give the names that --upgrade may use for a part of the lock."""
    section, _, base = part.partition(" ")
    if section == "base":
        there = lock.bases.get(base)
        return {base} | {f.name for f in (there.packages if there else ())}
    if section == "apt":
        groups = (g for key, g in lock.apt.items() if key.partition("+")[0] == base)
        return {f.name for group in groups if group != UNRESOLVED for f in group}
    if section == "sources":
        sources = {} if isinstance(lock.upstream, str) else lock.upstream
        return set(sources) | {s.file.name for s in sources.values() if s.file}
    if section == "ci":
        return set() if lock.ci == UNRESOLVED else {f.name for f in lock.ci.debs}
    return {f.name for name, files in index_groups(lock) if name.startswith(section) for f in files}


def _is_open(part: str, lock: Lock) -> bool:
    section, _, base = part.partition(" ")
    if section == "base":
        return base not in lock.bases or not lock.bases[base].is_resolved
    if section == "apt":
        return lock.apt.get(base, UNRESOLVED) == UNRESOLVED
    return section == "ci" and lock.ci == UNRESOLVED
