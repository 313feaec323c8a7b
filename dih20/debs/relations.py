"""Which dependencies of a set of packages nothing in it answers, and which conflicts hold."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dih20.debs.database import Package
from dih20.debs.version import holds

_RELATION: Final = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?\s*"
    r"(?:\(\s*(?P<operator><<|<=|=|>=|>>|<|>)\s*(?P<version>[^\s)]+)\s*\))?$"
)


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One name with an optional bound on its version, as in `libc6 (>= 2.38)`."""

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name

    def accepts(self, version: str) -> bool:
        return not self.operator or holds(version, self.operator, self.version)


def parse_clauses(text: str) -> list[list[Relation]]:
    """Give a field such as Depends as clauses, each a list of alternatives."""
    return [
        [_relation(alternative) for alternative in clause.split("|")]
        for clause in text.split(",")
        if clause.strip()
    ]


def _relation(text: str) -> Relation:
    found = _RELATION.match(text.strip())
    assert found, f"not a relation of a binary package: {text!r}"
    return Relation(
        name=found["name"], operator=found["operator"] or "", version=found["version"] or ""
    )


def faults(packages: Iterable[Package]) -> list[str]:
    """Give a line for each dependency that is not answered and each conflict that holds."""
    there = list(packages)
    offers = _offers(there)
    found = [line for package in there for line in _faults_of(package, offers)]
    return sorted(found)


Offers = dict[str, list[tuple[Package, str, bool]]]  # name -> (who, version, is it the real one)


def _offers(packages: list[Package]) -> Offers:
    offers: Offers = defaultdict(list)
    for package in packages:
        offers[package.name].append((package, package.version, True))
        for (provided,) in parse_clauses(package.provides):
            offers[provided.name].append((package, provided.version, False))
    return offers


def _faults_of(package: Package, offers: Offers) -> Iterator[str]:
    for clause in parse_clauses(package.depends):
        if not any(_answered(relation, offers) for relation in clause):
            wanted = " or ".join(map(str, clause))
            present = [
                f"{who.name} {version}"
                for relation in clause
                for who, version, _ in offers.get(relation.name, [])
            ]
            yield f"{package} needs {wanted}; there is {', '.join(present) or 'none'}"
    for (relation,) in parse_clauses(package.conflicts):
        for who, version, is_real in offers.get(relation.name, []):
            if who.name == package.name:
                continue
            if relation.accepts(version) if is_real or version else not relation.operator:
                yield f"{package} cannot stand beside {who} (its conflict with {relation})"


def _answered(relation: Relation, offers: Offers) -> bool:
    for _, version, is_real in offers.get(relation.name, []):
        if is_real or version:
            if relation.accepts(version):
                return True
        elif not relation.operator:  # a name that is provided without a version answers no bound
            return True
    return False
