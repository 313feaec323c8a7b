"""Which locked files belong to a base, in groups that `inv fetch --only` names."""

from __future__ import annotations

from collections.abc import Callable

from dih20.errors import UsageError
from dih20.lock.files import LockedFile
from dih20.lock.model import Lock

ON_REQUEST = ("torch", "nccl-for-tests")  # large, and needed by few: fetched only when named


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
    }
    # a base from a registry has no files of its own: the engine pulls it (base_image)
    groups["base"] = lambda: lock.base_debs(base_name)
    if base.is_stand_in:
        # what a registry base brings itself
        groups["toolkit"] = lock.toolkit_wheels
        groups["torch"] = lambda: lock.torch_wheels(tag)
    return groups


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
    chosen = names or [name for name in sorted(groups) if name not in ON_REQUEST]
    return {name: groups[name]() for name in chosen}
