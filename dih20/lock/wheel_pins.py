"""Pin the wheels: CUDA headers and toolkit of one release, NCCL, build tools, torch, the engine's needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from email.parser import HeaderParser

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dih20.config.image import ImageConfig
from dih20.errors import LockError
from dih20.index.shelf import Indexes
from dih20.index.simple import IndexFile
from dih20.lock.closure import Shelf, locked, resolve, wheels_of
from dih20.lock.files import LockedFile
from dih20.lock.targets import Target

_HEADER = re.compile(r"(^|/)include/.*\.(h|hpp|cuh)$")


class WheelPins:
    """Resolve wanted wheels at the indexes in force.

    Example:
        WheelPins(indexes, image).headers(target)
    """

    def __init__(
        self, indexes: Indexes, image: ImageConfig, kept: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        self.indexes, self.image = indexes, image
        self.shelf = Shelf(files=indexes.files, metadata=indexes.metadata, kept=kept)
        self._release: dict[str, SpecifierSet] | None = None

    def single(self, target: Target, wanted: str) -> IndexFile:
        """Give the best wheel for one wanted name, without what it needs."""
        requirement = Requirement(wanted)
        name = canonicalize_name(requirement.name)
        specifier = requirement.specifier
        if not specifier:
            specifier = self.release(target).get(name, SpecifierSet())
        found = wheels_of(self.shelf, target, name, specifier)
        if not found:
            raise self._nothing(target, name, specifier)
        return found[0]

    def singles(self, target: Target, wanted: Iterable[str]) -> tuple[LockedFile, ...]:
        return tuple(self.pin(self.single(target, each)) for each in wanted)

    def headers(self, target: Target) -> tuple[LockedFile, ...]:
        """Give the header wheels; each is opened at the index and must hold headers."""
        files = [self._header_wheel(target, each) for each in self.image.wheels.headers]
        for file in files:
            check_holds_headers(file.filename, self.indexes.members(file))
        return tuple(self.pin(file) for file in files)

    def _header_wheel(self, target: Target, wanted: str) -> IndexFile:
        """Give one header wheel; a name whose only wheels are pre-releases may be a placeholder."""
        try:
            return self.single(target, wanted)
        except LockError:
            name = canonicalize_name(Requirement(wanted).name)
            any_version = SpecifierSet(">=0.dev0")
            for file in wheels_of(self.shelf, target, name, any_version)[:1]:
                check_holds_headers(file.filename, self.indexes.members(file))
            raise

    def closure(
        self, target: Target, wanted: Sequence[str], provided: Iterable[str] = ()
    ) -> tuple[LockedFile, ...]:
        """Give everything wanted and what that needs."""
        return tuple(
            self.pin(file) for file in resolve(self.shelf, target, wanted, provided=provided)
        )

    def pin(self, file: IndexFile) -> LockedFile:
        return locked(file, self.indexes.size(file))

    def release(self, target: Target) -> dict[str, SpecifierSet]:
        """Give the versions that belong to the wanted CUDA release, as its meta package lists them."""
        if self._release is None:
            requirement = Requirement(self.image.wheels.cuda_release)
            found = wheels_of(
                self.shelf, target, canonicalize_name(requirement.name), requirement.specifier
            )
            if not found:
                raise self._nothing(target, requirement.name, requirement.specifier)
            header = HeaderParser().parsestr(self.indexes.metadata(found[0]))
            parts = [Requirement(text) for text in header.get_all("Requires-Dist") or []]
            self._release = {canonicalize_name(part.name): part.specifier for part in parts}
        return self._release

    def _nothing(self, target: Target, name: str, specifier: SpecifierSet) -> LockError:
        listed = self.indexes.files(name)
        what = f"{name}{specifier}"
        if listed and any(target.accepts(f.filename) for f in listed):
            found = f"no index in force has {what}; they have other versions"
        elif listed:
            found = f"{name} has no wheel for {target.python_tag} on glibc {target.glibc} {target.architecture}"
        else:
            found = f"no index in force has the project {name}"
        return LockError(
            found=f"{found} (asked: {self.indexes.shown}, from {self.indexes.source})",
            expected=f"{what}, as configs/images/{self.image.name}.yaml wants it",
            remedy="change what is wanted there, or name an index that has it in configs/mirrors.yaml",
        )


def check_holds_headers(filename: str, members: Iterable[str]) -> None:
    """Refuse a wheel for the header overlay that holds no header, such as a name's placeholder."""
    names = list(members)
    if any(_HEADER.search(name) for name in names):
        return
    raise LockError(
        found=f"{filename} holds {len(names)} files and no header: a placeholder, or the wrong package",
        expected="a wheel with include/*.h, to put into the header overlay",
        remedy="want the name that holds them (CUDA 13 libraries are named nvidia-NAME, without -cu13) in configs/images",
    )
