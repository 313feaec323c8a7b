"""Pin the CI image: apt's closure on its base, and the files of requirements/*.lock for its python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from dih20.config.ci import CiConfig
from dih20.errors import LockError
from dih20.index.shelf import Indexes
from dih20.index.simple import IndexFile
from dih20.lock.base_pins import AptRoots, apt_closure
from dih20.lock.closure import locked
from dih20.lock.files import OWN, Base, CiImage, LockedFile
from dih20.lock.targets import Target
from dih20.paths import REPOSITORY

_AT_ONCE = 8


def own_base(config: CiConfig) -> Base | None:
    """Give the user's own base of the configuration; None for the stand-in."""
    own = config.own_base
    if config.base != "own" or own is None:
        return None
    return Base(
        name=OWN,
        image=own.image,
        suite=own.suite,
        architecture=own.architecture,
        digest=own.digest,
        python_tag=own.python_tag,
        torch="none",
        glibc=own.glibc,
    )


def ci_image(
    config: CiConfig,
    stand_in: Base,
    indexes: Indexes,
    roots: AptRoots,
    kept: Sequence[LockedFile] = (),
) -> CiImage:
    """Give the pins of the CI image; kept versions of its packages stay where they fit."""
    own = own_base(config)
    base = own or stand_in
    debs = apt_closure(base, config.apt, roots, kept)
    wheels = requirement_files(config.requirements, Target.of(base), indexes)
    return CiImage(base=own, base_digest=base.require_digest(), debs=debs, wheels=tuple(wheels))


def requirement_files(names: Sequence[str], target: Target, indexes: Indexes) -> list[LockedFile]:
    """Give the one file of each requirement that a target's pip would take; its hash is in the lock."""
    wanted: dict[str, tuple[Requirement, frozenset[str]]] = {}
    for name in names:
        text = (REPOSITORY / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
        for requirement, hashes in read_requirements(text):
            if target.needs(requirement):
                wanted[canonicalize_name(requirement.name)] = requirement, hashes
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(
            pool.map(lambda pair: _file(pair[0], pair[1], target, indexes), wanted.values())
        )
    return [locked(file, indexes.size(file)) for file in found]


def read_requirements(text: str) -> Iterator[tuple[Requirement, frozenset[str]]]:
    """Give each requirement of a hash-pinned lock with the hashes that it accepts."""
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        entry = line.split(" #", 1)[0].strip()
        if not entry or entry.startswith(("#", "-")):
            continue
        requirement, *_ = re.split(r"\s--hash=", entry, maxsplit=1)
        yield (
            Requirement(requirement),
            frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)),
        )


def _file(
    requirement: Requirement, hashes: frozenset[str], target: Target, indexes: Indexes
) -> IndexFile:
    ranked = [
        (rank, file.filename, file)
        for file in indexes.files(requirement.name)
        if file.sha256 in hashes
        and (rank := target.rank(file.filename)) is not None
        and requirement.specifier.contains(parse_wheel_filename(file.filename)[1], prereleases=True)
    ]
    if not ranked:
        raise LockError(
            found=f"no index in force has a wheel for {requirement} on {target.python_tag} with a hash "
            f"of requirements/*.lock (asked: {indexes.shown}, from {indexes.source})",
            expected="the file that pip would install in the CI image",
            remedy="name an index that has it in configs/mirrors.yaml, or write the locks anew "
            "(requirements/relock.py)",
        )
    return min(ranked, key=lambda entry: entry[:2])[2]
