"""What `inv build-vendor` does: find the engine, the image and the lock, then build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import UsageError, WheelError
from dih20.image import engine
from dih20.image.newest import newest
from dih20.lock import Lock
from dih20.wheels.build import Limits
from dih20.wheels.evidence import write_evidence
from dih20.wheels.image_facts import facts_of
from dih20.wheels.plan import as_plan
from dih20.wheels.wheel_set import build_wheels, look_at

if TYPE_CHECKING:
    import docker


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to build and on what.

    Args:
        only: recipe names, separated by commas; empty for every recipe.
        image: tag or id of the image; empty for the newest one of the lock in force.
        torch: put the lock's torch on an image without one first, as one more layer.
        evidence: a JSON file to write the outcome to; empty for none.
    """

    only: str = ""
    image: str = ""
    torch: bool = False
    evidence: str = ""


def build_vendor(
    ui: Console,
    choice: Choice,
    *,
    jobs: int = 0,
    memory_gb: float = 0.0,
    plan_only: bool = False,
) -> dict[str, Any]:
    """Build the wheels for an image and give them as plain values."""
    if jobs < 0 or memory_gb < 0:
        raise UsageError(
            found=f"--jobs {jobs} --memory {memory_gb:g}",
            expected="numbers above zero, or neither option",
            remedy="correct them; without them the engine's cores and memory decide",
        )
    lock = Lock.load()
    client = engine.connect()
    try:
        chosen = choice.image or newest_image(client, lock)
        if choice.torch:
            chosen = torch_tag(ui, client, chosen, lock, plan_only=plan_only)
        if plan_only:
            plan = as_plan(chosen, look_at(client, chosen, lock, only=choice.only or None)[1])
            ui.plan(plan)
            return {"image": chosen, "plan": plan.as_dict()}
        limits = Limits(jobs=jobs or None, memory_gb=memory_gb or None)
        rows = build_wheels(ui, client, chosen, lock, only=choice.only or None, limits=limits)
        facts = facts_of(client, chosen)
    finally:
        client.close()
    if choice.evidence:
        write_evidence(ui, Path(choice.evidence), facts, rows)
    return {"image": chosen, "wheels": [row.as_dict() for row in rows]}


def torch_tag(
    ui: Console, client: docker.DockerClient, image: str, lock: Lock, *, plan_only: bool
) -> str:
    """Give the image with torch on it; under --plan only one that is there already."""
    from dih20.wheels import torch_layer

    if not plan_only:
        return torch_layer.with_torch(ui, client, image, lock)
    tag = torch_layer.tag_of(client, image, lock)
    if torch_layer.is_there(client, tag):
        return tag
    ui.line(f"  + layer torch on {image}   (then each wheel that needs torch)")
    return image


def newest_image(client: docker.DockerClient, lock: Lock) -> str:
    """Give the newest finished di-h20 image of the lock in force."""
    found = client.images.list(
        filters={"label": ["dih20.owner=dih20", f"dih20.lock={lock.identity}"]}
    )
    tagged = [image for image in found if any(tag.startswith("di-h20:") for tag in image.tags)]
    if not tagged:
        raise WheelError(
            found="no di-h20 image of the lock in force in this engine",
            expected=f"one with label dih20.lock={lock.identity[:12]}...",
            remedy="run ./inv build-image, or name an image with --image",
        )
    latest = newest(tagged)
    return str(next(tag for tag in latest.tags if tag.startswith("di-h20:")))
