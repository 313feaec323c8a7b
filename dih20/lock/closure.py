"""Resolve wanted packages and all they need into files, for one target python.

Only wheels count: a source archive would have to be run to know what it needs. Metadata is read
out of the wheels by parts, so that resolving gigabytes of CUDA libraries reads kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from resolvelib import AbstractProvider, BaseReporter, ResolutionImpossible, Resolver
from resolvelib.resolvers import RequirementInformation

from dih20.errors import LockError
from dih20.index.simple import IndexFile
from dih20.lock.files import LockedFile
from dih20.lock.targets import Target

Key = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class Candidate:
    """One wheel that could be taken, with the extras it is taken with; provided ones have no file."""

    name: str
    version: Version | None
    extras: frozenset[str]
    file: IndexFile | None


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """What indexes offer: the files of a project, and the metadata of a wheel.

    Args:
        kept: (file name, sha256) of pins that stay where they still fit; they come first.
    """

    files: Callable[[str], list[IndexFile]]
    metadata: Callable[[IndexFile], str]
    kept: frozenset[tuple[str, str]] = frozenset()


def wheels_of(
    shelf: Shelf, target: Target, project: str, specifier: SpecifierSet
) -> list[IndexFile]:
    """Give the wheels of a project that fit target and specifier, the best first."""
    fitting = []
    for order, file in enumerate(shelf.files(project)):
        rank = target.rank(file.filename)
        if rank is None or not file.sha256:
            continue
        if file.requires_python and not SpecifierSet(file.requires_python).contains(
            target.python_version + ".0"
        ):
            continue
        _, version, build, _ = parse_wheel_filename(file.filename)
        if file.yanked and f"=={version}" not in str(specifier):
            continue
        if specifier.contains(
            version, prereleases=version.is_prerelease and _asks_for(specifier, version)
        ):
            is_kept = (file.filename, file.sha256) in shelf.kept
            fitting.append(((is_kept, version, -rank, build or (), -order), file))
    return [file for _, file in sorted(fitting, key=lambda pair: pair[0], reverse=True)]


def _asks_for(specifier: SpecifierSet, version: Version) -> bool:
    return any(
        Version(s.version.removesuffix(".*")).is_prerelease
        for s in specifier
        if s.operator != "==="
    )


class _Provider(AbstractProvider[Requirement, Candidate, Key]):
    """Answer resolvelib's questions from a shelf."""

    def __init__(
        self,
        shelf: Shelf,
        target: Target,
        constraints: Mapping[str, SpecifierSet],
        provided: frozenset[str],
    ) -> None:
        self.shelf, self.target = shelf, target
        self.constraints, self.provided = constraints, provided
        self._needs: dict[str, list[Requirement]] = {}

    def identify(self, requirement_or_candidate: Requirement | Candidate) -> Key:
        name = canonicalize_name(requirement_or_candidate.name)
        return name, frozenset(requirement_or_candidate.extras)

    def get_preference(
        self,
        identifier: Key,
        resolutions: Mapping[Key, Candidate],
        candidates: Mapping[Key, Iterator[Candidate]],
        information: Mapping[Key, Iterator[RequirementInformation[Requirement, Candidate]]],
        backtrack_causes: Sequence[RequirementInformation[Requirement, Candidate]],
    ) -> Any:
        pinned = any("==" in str(each.requirement.specifier) for each in information[identifier])
        return (not pinned, identifier[0], len(identifier[1]))

    def find_matches(
        self,
        identifier: Key,
        requirements: Mapping[Key, Iterator[Requirement]],
        incompatibilities: Mapping[Key, Iterator[Candidate]],
    ) -> Iterable[Candidate]:
        name, extras = identifier
        if name in self.provided:
            return [Candidate(name, None, extras, None)]
        specifier = self.constraints.get(name, SpecifierSet())
        for (other, _), wanted in requirements.items():
            if other == name:
                for requirement in wanted:
                    specifier &= requirement.specifier
        bad = {(c.file.filename if c.file else "") for c in incompatibilities[identifier]}
        return [
            Candidate(name, parse_wheel_filename(file.filename)[1], extras, file)
            for file in wheels_of(self.shelf, self.target, name, specifier)
            if file.filename not in bad
        ]

    def is_satisfied_by(self, requirement: Requirement, candidate: Candidate) -> bool:
        if candidate.version is None:
            return True
        return requirement.specifier.contains(candidate.version, prereleases=True)

    def get_dependencies(self, candidate: Candidate) -> Iterable[Requirement]:
        if candidate.file is None:
            return []
        needs = [r for r in self.requires(candidate.file) if self.target.needs(r, candidate.extras)]
        if candidate.extras:
            needs.append(Requirement(f"{candidate.name}=={candidate.version}"))
        with ThreadPoolExecutor(8) as pool:  # ask for the pages together; the answers are kept
            list(
                pool.map(
                    self.shelf.files,
                    {r.name for r in needs if canonicalize_name(r.name) not in self.provided},
                )
            )
        return needs

    def requires(self, file: IndexFile) -> list[Requirement]:
        if file.filename not in self._needs:
            header = HeaderParser().parsestr(self.shelf.metadata(file))
            self._needs[file.filename] = [
                Requirement(text) for text in header.get_all("Requires-Dist") or []
            ]
        return self._needs[file.filename]


def resolve(
    shelf: Shelf,
    target: Target,
    wanted: Sequence[str],
    *,
    constraints: Mapping[str, SpecifierSet] | None = None,
    provided: Iterable[str] = (),
) -> list[IndexFile]:
    """Give one wheel for everything wanted and everything that needs, sorted by name.

    Args:
        constraints: versions allowed for a name, whoever asks for it.
        provided: names that something else brings; they and what only they need are left out.
    """
    requirements = [r for r in map(Requirement, wanted) if target.needs(r)]
    names = frozenset(canonicalize_name(name) for name in provided)
    provider = _Provider(shelf, target, constraints or {}, names)
    resolver: Resolver[Requirement, Candidate, Key] = Resolver(provider, BaseReporter())
    try:
        result = resolver.resolve(requirements, max_rounds=2000)
    except ResolutionImpossible as fault:
        raise _impossible(shelf, target, fault) from fault
    files = {c.file.filename: c.file for c in result.mapping.values() if c.file}
    return [files[name] for name in sorted(files, key=str.lower)]


def _impossible(
    shelf: Shelf, target: Target, fault: ResolutionImpossible[Requirement, Candidate]
) -> LockError:
    lines = []
    causes = list(fault.causes)
    for cause in causes:
        by = f" (for {cause.parent.name} {cause.parent.version})" if cause.parent else ""
        lines.append(f"{cause.requirement}{by}")
    name = causes[0].requirement.name
    listed = shelf.files(name)
    if not listed:
        found = f"no index has the project {name!r}"
    elif not any(target.accepts(f.filename) for f in listed):
        found = f"{name} has no wheel for {target.python_tag} on glibc {target.glibc} {target.architecture}"
    else:
        found = f"nothing satisfies at once: {'; '.join(dict.fromkeys(lines))}"
    return LockError(
        found=f"{found} [wanted: {'; '.join(dict.fromkeys(lines))}]"
        if "at once" not in found
        else found,
        expected=f"a wheel for {target.python_tag} at one of the indexes in force",
        remedy="change the wanted version in configs/images, or name an index that has it in configs/mirrors.yaml",
    )


def locked(file: IndexFile, size_bytes: int) -> LockedFile:
    """Give a listed wheel as a pin."""
    name, version, _, _ = parse_wheel_filename(file.filename)
    assert file.sha256, f"{file.filename} was chosen without a hash"
    return LockedFile(
        name=name,
        version=str(version),
        filename=file.filename,
        sha256=file.sha256,
        size_bytes=size_bytes,
        kind="wheel",
    )
