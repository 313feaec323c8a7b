"""Which wheels there are already and which must be built, and why: a pure comparison of parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dih20.errors import LockError, Unresolved
from dih20.lock import Lock, LockedFile
from dih20.plan import Action, Plan
from dih20.wheels.identity import Parts, digest_of
from dih20.wheels.image_facts import ImageFacts
from dih20.wheels.nccl_root import pick_nccl
from dih20.wheels.procedure import procedure_of
from dih20.wheels.recipes import Recipe, fill_in
from dih20.wheels.sources import Described, describe
from dih20.wheels.store import Store, StoredWheel


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One recipe with everything known before a build: its parts, and the stored wheel if there is one."""

    recipe: Recipe
    parts: Parts
    described: Described
    places: dict[str, str]
    nccl_lines: tuple[str, ...]
    hit: StoredWheel | None
    why: str
    seconds: float = 0.0  # what it took to find out


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A recipe that builds nothing here, with the words for the status table."""

    recipe: Recipe
    note: str


def consider(lock: Lock, facts: ImageFacts, recipe: Recipe, store: Store) -> list[Wanted | Skipped]:
    """Give what a recipe asks for: a build or a hit, and a line for what its policy leaves out."""
    found: list[Wanted | Skipped] = []
    if recipe.policy == "drop-in":
        found.append(Skipped(recipe=recipe, note=_skipped_by_policy(recipe)))
    elif missing := _no_source(lock, recipe):
        found.append(Skipped(recipe=recipe, note=f"{missing}; provider is {recipe.replacement}"))
    elif recipe.build.torch and not facts.has_torch:
        found.append(
            Skipped(recipe=recipe, note="not built: the image has no torch to build against")
        )
        return found
    else:
        found.append(_wanted(lock, facts, recipe, store))
    if recipe.drop_in and _is_there(recipe):
        found.append(_wanted(lock, facts, recipe.as_drop_in(), store))
    return found


def _skipped_by_policy(recipe: Recipe) -> str:
    where = "" if _is_there(recipe) else " (not in this tree yet)"
    return f"not buildable for SM90, skipped by policy, replaced by {recipe.replacement}{where}: {recipe.reason}"


def _no_source(lock: Lock, recipe: Recipe) -> str:
    """Say that the real source of a real-or-drop-in recipe is not locked; empty when it is."""
    if recipe.policy != "real-or-drop-in" or recipe.source is None or recipe.source.lock is None:
        return ""
    try:
        lock.source(recipe.source.lock)
    except Unresolved:
        raise
    except LockError:
        where = "" if _is_there(recipe) else " (not in this tree yet)"
        return f"no real source is locked{where}"
    return ""


def _is_there(recipe: Recipe) -> bool:
    from dih20.paths import REPOSITORY

    assert recipe.drop_in is not None and recipe.drop_in.path is not None
    return (REPOSITORY / recipe.drop_in.path / "pyproject.toml").is_file()


def _wanted(lock: Lock, facts: ImageFacts, recipe: Recipe, store: Store) -> Wanted:
    assert recipe.source is not None
    started = time.monotonic()
    described = describe(lock, recipe.source)
    places = {"site_packages": facts.site_packages}
    lines: tuple[str, ...] = ()
    if recipe.build.nccl:
        search = pick_nccl(facts.nccl, version=lock.nccl().version)
        places["nccl"], lines = search.picked.path, tuple(search.lines)
    parts = parts_of(lock, facts, recipe, described, places)
    hit = store.find(parts.identity)
    why = "source, recipe, environment, toolchain and torch unchanged"
    return Wanted(
        recipe=recipe,
        parts=parts,
        described=described,
        places=places,
        nccl_lines=lines,
        hit=hit,
        why=why if hit else store.why_missing(recipe.name, parts),
        seconds=time.monotonic() - started,
    )


def parts_of(
    lock: Lock, facts: ImageFacts, recipe: Recipe, described: Described, places: dict[str, str]
) -> Parts:
    """Give everything that decides the wheel's content.

    A wheel that is tagged for every Python 3 and compiled against nothing of the image does not
    depend on the image's python or torch, so those parts are left blank for it.
    """
    stands_alone = is_for_every_python(recipe)
    tag = "any" if stands_alone else facts.python_tag
    environment = {k: fill_in(v, places) for k, v in recipe.build.environment.items()}
    environment |= {
        k: v for k, v in facts.environment.items() if k == "CPATH" and recipe.build.nvcc
    }
    needed = requirement_files(lock, facts, recipe)
    requirements = [str(file) if stands_alone else file.sha256 for file in needed]
    return Parts(
        source=described.source,
        patchset=described.patchset,
        recipe=recipe_digest(recipe),
        procedure=procedure_of(recipe),
        environment=digest_of(environment),
        requirements=digest_of(requirements),
        headers=digest_of([file.sha256 for file in header_files(lock, facts, recipe)]),
        toolchain=toolchain_of(lock, facts, recipe),
        torch=facts.torch if recipe.build.torch else "none",
        python_tag=tag,
    )


def is_for_every_python(recipe: Recipe) -> bool:
    """Say whether the wheel depends on nothing of the image but its compilers."""
    return recipe.python_tag == "py3" and not recipe.build.torch


def requirement_files(lock: Lock, facts: ImageFacts, recipe: Recipe) -> list[LockedFile]:
    """Give the packages that are put beside the build."""
    known = {file.name: file for file in lock.build_requirements(facts.python_tag)}
    return [known[name] for name in recipe.build.requirements]


def recipe_digest(recipe: Recipe) -> str:
    """Give the hash over what of a recipe can change the wheel or what is promised of it.

    Words, limits and the headers that are looked for beforehand do neither.
    """
    return digest_of(recipe_content(recipe))


def recipe_content(recipe: Recipe) -> dict[str, Any]:
    """Give what recipe_digest is taken over, as plain values."""
    plain = recipe.model_dump(mode="json", exclude={"about", "optional", "reason"})
    for key in ("headers", "memory_per_job_gb", "timeout_minutes"):
        del plain["build"][key]
    return plain


def header_files(lock: Lock, facts: ImageFacts, recipe: Recipe) -> list[LockedFile]:
    """Give the locked files whose headers a build reads: the image's overlay, the NCCL."""
    overlay = lock.header_wheels() if recipe.build.nvcc and "CPATH" in facts.environment else []
    return [*overlay, *([lock.nccl()] if recipe.build.nccl else [])]


def toolchain_of(lock: Lock, facts: ImageFacts, recipe: Recipe) -> str:
    """Give the compilers that a recipe uses, as text."""
    if not recipe.build.nvcc:
        return "none"
    toolkit = [file.sha256 for file in toolkit_files(lock, facts, recipe)]
    whose = f" (toolkit {digest_of(toolkit)[:12]})" if toolkit else ""
    return f"nvcc {nvcc_of(lock, facts)}{whose}, g++ {facts.gcc}, glibc {facts.glibc}"


def toolkit_files(lock: Lock, facts: ImageFacts, recipe: Recipe) -> list[LockedFile]:
    """Give the lock's wheels that make the toolkit, for an image that brings none."""
    return lock.toolkit_wheels() if recipe.build.nvcc and facts.nvcc == "none" else []


def nvcc_of(lock: Lock, facts: ImageFacts) -> str:
    """Give the nvcc of the image, else the version of the lock's toolkit."""
    from dih20.wheels.toolkit import version_of

    return facts.nvcc if facts.nvcc != "none" else version_of(lock.toolkit_wheels())


def as_plan(image: str, considered: list[Wanted | Skipped]) -> Plan:
    """Give the printable plan."""
    actions = [
        Action(verb="leave", target=f"{item.recipe.name}", why=item.note, needed=False)
        if isinstance(item, Skipped)
        else Action(
            verb="build" if item.hit is None else "keep",
            target=item.recipe.name,
            why=item.why,
            needed=item.hit is None,
            details={"identity": item.parts.identity, "parts": item.parts.as_dict()},
        )
        for item in considered
    ]
    return Plan(title=f"wheels for image {image}", actions=tuple(actions))
