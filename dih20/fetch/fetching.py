"""`inv fetch`: every locked input of a base, into the cache."""

from __future__ import annotations

from typing import Any

from dih20.config import load_image, load_mirrors
from dih20.console import Console
from dih20.fetch.downloads import distinct, fetch_files, make_plan
from dih20.fetch.git_trees import fetch_git_sources
from dih20.fetch.groups import chosen_groups
from dih20.lock.model import Lock
from dih20.paths import cache_dir, shown


def fetch_base(
    ui: Console, *, base: str, only: str, image_name: str, only_plan: bool
) -> dict[str, Any]:
    """Fetch the groups of a base that are not in the cache yet."""
    image, mirrors, lock = load_image(image_name), load_mirrors(), Lock.load()
    groups = chosen_groups(lock, base or image.base, only)
    plan = make_plan(
        [f for files in groups.values() for f in files],
        f"fetch the inputs of base {base or image.base}",
    )
    if only_plan:
        ui.plan(plan)
        return plan.as_dict()
    for name, files in groups.items():
        fetch_files(ui, files, mirrors, what=name)
    if "sources" in groups:
        fetch_git_sources(ui, lock, image)
    everything = distinct([f for files in groups.values() for f in files])
    return {
        "cache": shown(cache_dir()),
        "groups": {name: len(files) for name, files in groups.items()},
        "files": len(everything),
        "size_bytes": sum(f.size_bytes for f in everything),
        "fetched": sum(1 for _ in plan.pending()),
    }
