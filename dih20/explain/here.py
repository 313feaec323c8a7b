"""What lock and tree here would make of the recipe of a wheel that was built anywhere: parts against parts.

Nothing of the image is asked: what the wheel depended on there stands in its record, so the answer
holds for an image like that one, and no engine is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dih20.errors import ToolError, UsageError
from dih20.lock import Lock
from dih20.provenance.record import Record
from dih20.wheels.identity import differences
from dih20.wheels.image_facts import ImageFacts
from dih20.wheels.plan import parts_of
from dih20.wheels.recipes import Recipe, load_all
from dih20.wheels.sources import describe

_COMPILERS = re.compile(r"^nvcc (?P<nvcc>.+?)(?P<toolkit> \(toolkit \w+\))?, g\+\+ (?P<gcc>\S+), glibc (?P<glibc>\S+)$")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CacheAnswer:
    """Whether a build here would be answered by this artefact; `changed` says what differs."""

    is_hit: bool | None
    changed: tuple[str, ...] = field(default=())
    why_unknown: str = ""

    @property
    def lines(self) -> list[str]:
        if self.is_hit is None:
            return [f"not known: {self.why_unknown}"]
        if self.is_hit:
            return ["hit: lock and tree here give this identity"]
        return [f"miss: {line}" for line in self.changed]

    def as_dict(self) -> dict[str, object]:
        return {"hit": self.is_hit, "changed": list(self.changed), "why_unknown": self.why_unknown}


def compare_with_here(record: Record, lock: Lock | None = None) -> CacheAnswer:
    """Say which parts of a wheel's identity differ from what would be built here."""
    try:
        lock = lock or Lock.load()
        recipe = _recipe_of(record)
        assert recipe.source is not None, recipe.name
        facts, places = _facts_of(record), _places_of(record, recipe)
        wanted = parts_of(lock, facts, recipe, describe(lock, recipe.source), places).as_dict()
    except ToolError as missing:
        return CacheAnswer(is_hit=None, why_unknown=missing.found)
    changed = differences(record.parts, wanted)
    return CacheAnswer(is_hit=not changed, changed=tuple(changed))


def _recipe_of(record: Record) -> Recipe:
    """Give the recipe here that makes the same wheel: the real one, or its drop-in."""
    named = [recipe for recipe in load_all() if recipe.name == record.name]
    candidates = [*named, *(recipe.as_drop_in() for recipe in named if recipe.drop_in)]
    wanted = record.recipe["source"]
    for recipe in candidates:
        if recipe.source and recipe.policy != "drop-in":
            known = recipe.source.model_dump(mode="json")
            if (known["lock"], known["path"]) == (wanted["lock"], wanted["path"]):
                return recipe
    raise UsageError(
        found=f"no recipe here builds {record.name} from {wanted['lock'] or wanted['path']}",
        expected="recipes/NAME.yaml with the source that the wheel's record names",
        remedy="look in the tree that the wheel was built from",
    )


def _facts_of(record: Record) -> ImageFacts:
    """Give what the record says of the image, as far as an identity depends on it."""
    found = _COMPILERS.match(record.parts["toolchain"])
    gcc, glibc, nvcc = (found["gcc"], found["glibc"], found["nvcc"]) if found else ("", "", "none")
    brought = found is not None and not found["toolkit"]
    tag = record.parts["python_tag"]
    cpath = record.environment.get("CPATH")
    return ImageFacts(
        image_id="",
        python_tag=_any_tag() if tag == "any" else tag,
        gcc=gcc,
        nvcc=nvcc if brought else "none",
        glibc=glibc,
        torch=record.parts["torch"],
        site_packages="",
        nccl=(),
        environment={"CPATH": cpath} if cpath else {},
        labels={},
    )


def _any_tag() -> str:
    """Give a python of the lock; what serves every python is the same for each."""
    groups = Lock.load().wheels.build
    return next(iter(groups)) if isinstance(groups, dict) else "cp312"


def _places_of(record: Record, recipe: Recipe) -> dict[str, str]:
    """Read back what {site_packages} and {nccl} meant, from the variables that were filled in."""
    places: dict[str, str] = {}
    for name, template in recipe.build.environment.items():
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(template))
        if found := re.fullmatch(pattern, record.environment.get(name, "")):
            places |= found.groupdict()
    return places
