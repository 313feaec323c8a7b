"""Which locked files belong to a base, in groups that `inv fetch --only` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dih20.errors import UsageError
from dih20.lock.files import LockedFile
from dih20.lock.model import Lock

ON_REQUEST = ("torch", "nccl-for-tests", "ci")  # large, and needed by few: fetched only when named
# So are the packages of a variant: its group has the variant's name.


def groups_of(lock: Lock, base_name: str) -> dict[str, Callable[[], list[LockedFile]]]:
    """Give the groups of a base; a group is read, and may raise Unresolved, when it is called."""
    base = lock.base(base_name)
    tag = base.python_tag
    groups: dict[str, Callable[[], list[LockedFile]]] = {
        "apt": lambda: lock.debs(base_name),
        "headers": lock.header_wheels,
        "nccl": lambda: [lock.nccl()],
        "inspector": lock.inspector_wheels,
        "build": lambda: lock.build_requirements(tag),
        "requirements": lambda: lock.requirements(tag),
        "sources": lock.sources,
        "nccl-for-tests": lambda: [lock.nccl_for_tests()],
        "ci": lock.ci_files,
    }
    # a base from a registry has no files of its own: the engine pulls it (base_image)
    groups["base"] = lambda: lock.base_debs(base_name)
    if base.is_stand_in:
        # what a registry base brings itself
        groups["toolkit"] = lock.toolkit_wheels
        groups["torch"] = lambda: lock.torch_wheels(tag)
    for name in variants_on(lock, base_name):
        groups[name] = partial(lock.variant_debs, base_name, name)
    return groups


def variants_on(lock: Lock, base_name: str) -> list[str]:
    """Give the variants that the lock knows on a base."""
    return [key.partition("+")[2] for key in lock.apt if key.startswith(f"{base_name}+")]


def chosen_groups(lock: Lock, base_name: str, only: str) -> dict[str, list[LockedFile]]:
    """Give the files of the groups that --only names; without it, all but the ones on request."""
    groups = groups_of(lock, base_name)
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in groups]:
        raise UsageError(
            found=f"no group {', '.join(unknown)} for base {base_name}",
            expected=f"some of: {', '.join(sorted(groups))}",
            remedy="correct --only",
        )
    on_request = (*ON_REQUEST, *variants_on(lock, base_name))
    chosen = names or [name for name in sorted(groups) if name not in on_request]
    return {name: groups[name]() for name in chosen}
