"""`inv fetch`: every locked input of a base, into the cache; a registry base, into the engine."""

from __future__ import annotations

from typing import Any

from dih20.config import load_image, load_mirrors
from dih20.console import Console
from dih20.fetch.base_image import fetch_base_image
from dih20.fetch.downloads import distinct, fetch_files, make_plan
from dih20.fetch.git_trees import fetch_git_sources, git_actions
from dih20.fetch.groups import chosen_groups
from dih20.lock.files import Base, LockedFile
from dih20.lock.model import Lock
from dih20.paths import cache_dir, shown
from dih20.plan import Action, Plan


def fetch_base(
    ui: Console, *, base: str, only: str, image_name: str, only_plan: bool
) -> dict[str, Any]:
    """Fetch the groups of a base that are not in the cache yet."""
    image, mirrors, lock = load_image(image_name), load_mirrors(), Lock.load()
    chosen = lock.base(base or image.base)
    groups = chosen_groups(lock, chosen.name, only)
    everything = distinct([f for files in groups.values() for f in files])
    plan = _plan(chosen, lock, groups, everything)
    if only_plan:
        ui.plan(plan)
        return plan.as_dict()
    for name, files in groups.items():
        if name == "base" and not chosen.is_stand_in:
            fetch_base_image(ui, chosen)
        else:
            fetch_files(ui, files, mirrors, what=name)
    if "sources" in groups:
        fetch_git_sources(ui, lock, image)
    return {
        "cache": shown(cache_dir()),
        "groups": {name: len(files) for name, files in groups.items()},
        "files": len(everything),
        "size_bytes": sum(f.size_bytes for f in everything),
        "fetched": sum(1 for _ in plan.pending()),
    }


def _plan(
    base: Base, lock: Lock, groups: dict[str, list[LockedFile]], files: list[LockedFile]
) -> Plan:
    plan = make_plan(files, f"fetch the inputs of base {base.name}")
    extra = git_actions(lock) if "sources" in groups else []
    if "base" in groups and not base.is_stand_in:
        extra.append(
            Action(
                verb="pull", target=base.reference, why="unless the engine holds it", needed=None
            )
        )
    return Plan(title=plan.title, actions=(*plan.actions, *extra))
