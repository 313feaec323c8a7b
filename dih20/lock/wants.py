"""What each section of the lock wants, as a hash: when it differs from the lock's, the section is stale.

A section is over the part of the image configuration that it answers; `base` and `apt` have a part
for each base, so that one can be resolved anew where the other cannot be reached.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dih20.config.image import ImageConfig
from dih20.errors import UsageError
from dih20.lock.stand_in import read_package_list
from dih20.paths import REPOSITORY

SECTIONS = ("base", "apt", "wheels", "sources", "requirements", "ci")
BASES = ("stand-in", "vllm")


def parts_of(section: str, bases: tuple[str, ...] = BASES) -> list[str]:
    """Give the names under which a section's wants are noted in the lock."""
    return [f"{section} {base}" for base in bases] if section in ("base", "apt") else [section]


def wanted_by(part: str, image: ImageConfig) -> str:
    """Give the hash over what a part of the lock wants."""
    text = json.dumps(_wanted(part, image), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _wanted(part: str, image: ImageConfig) -> Any:
    section, _, base = part.partition(" ")
    if section == "base":
        return _base(base, image)
    if section == "apt":
        wanted = [sorted(image.apt), _base(base, image)]
        on_it = {name: v.apt for name, v in sorted(image.variants.items()) if v.base == base}
        return [*wanted, on_it] if on_it else wanted
    if section == "wheels":
        return [image.wheels.model_dump(mode="json"), _targets(image)]
    if section == "sources":
        return {
            name: source.model_dump(exclude_none=True) for name, source in image.sources.items()
        }
    if section == "ci":
        return _ci(image)
    assert section == "requirements", f"no section {section!r}"
    source = image.sources[image.requirements.source]
    return [
        image.requirements.model_dump(mode="json"),
        source.model_dump(exclude_none=True),
        _targets(image),
    ]


def _ci(image: ImageConfig) -> Any:
    """What the CI image wants: its own file, the requirement locks it names, the base it stands on."""
    from dih20.config import load_ci

    ci = load_ci()
    locks = {
        name: hashlib.sha256(
            (REPOSITORY / "requirements" / f"{name}.lock").read_bytes()
        ).hexdigest()
        for name in ci.requirements
    }
    own = ci.own_base.model_dump(mode="json") if ci.base == "own" and ci.own_base else None
    return [sorted(ci.apt), locks, own or _base("stand-in", image)]


def _base(name: str, image: ImageConfig) -> Any:
    if name == "vllm":
        return image.bases.vllm.model_dump(mode="json")
    stand_in = image.bases.stand_in
    return [stand_in.model_dump(mode="json"), read_package_list(REPOSITORY / stand_in.packages)]


def _targets(image: ImageConfig) -> list[list[str]]:
    return [
        [b.python_tag, b.glibc, b.architecture] for b in (image.bases.vllm, image.bases.stand_in)
    ]


def chosen(given: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Give the names that an option lists, in the known order; all of them without it."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            found=f"{option}: no {', '.join(unknown)} in the lock",
            expected=f"some of: {', '.join(known)}",
            remedy=f"correct {option}",
        )
    return tuple(name for name in known if name in names) if names else known
