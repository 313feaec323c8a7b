"""What lock, recipes, patches and configuration here say should run on a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dih20.explain.here import CacheAnswer, compare_with_here
from dih20.explain.image import plans_for
from dih20.provenance.record import Record

if TYPE_CHECKING:
    from dih20.config import HostConfig
    from dih20.lock import Lock


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What should run. Values that could not be had here are None; `unknown` says why.

    Args:
        image_identity: key of the image's last step.
        layers: of the image here, the base first; empty when this machine's engine holds none.
        wheels: names of the recipes that must be installed where the image has torch, and where not.
    """

    host: HostConfig
    lock: str
    nccl: str
    patchset: str | None
    image_identity: str | None
    layers: tuple[str, ...] = ()
    wheels: frozenset[str] = frozenset()
    wheels_with_torch: frozenset[str] = frozenset()
    unknown: dict[str, str] = field(default_factory=dict)
    answer: Callable[[Record], CacheAnswer] = compare_with_here


def expected_on(host: HostConfig, lock: Lock, image: Mapping[str, str]) -> Expected:
    """Gather what should run on a host; what is missing here is named, not guessed.

    Args:
        image: labels of the image that runs there, which say whether it is a variant.
    """
    from dih20.errors import ToolError
    from dih20.patches import patchset_identity

    unknown: dict[str, str] = {}
    identity = patchset = None
    layers: tuple[str, ...] = ()
    try:
        identity = _image_identity(lock, image)
        layers = _layers_here(identity)
    except ToolError as missing:
        unknown["image layers" if identity else "image identity"] = missing.found
    try:
        patchset = patchset_identity(lock)
    except ToolError as missing:
        unknown["patchset"] = missing.found
    plain, torch = _wheel_names()
    return Expected(
        host=host,
        lock=lock.identity,
        nccl=lock.nccl().version,
        patchset=patchset,
        image_identity=identity,
        layers=layers,
        wheels=plain,
        wheels_with_torch=torch,
        unknown=unknown,
    )


def _image_identity(lock: Lock, image: Mapping[str, str]) -> str:
    """Give the key of the last step on the base of configs/images, whatever base runs there."""
    return plans_for({"dih20.step": image.get("dih20.step", "")}, lock)[-1].key


def _layers_here(identity: str) -> tuple[str, ...]:
    """Give the layers of the image here, without which only its label is compared."""
    from dih20.errors import ImageError
    from dih20.image import engine

    client = engine.connect()
    try:
        labels = ["dih20.role=image", f"dih20.identity={identity}"]
        found = client.images.list(filters={"label": labels})
    finally:
        client.close()
    if not found:
        raise ImageError(
            found=f"the engine here holds no image of identity {identity[:12]}",
            expected="the image of this lock, to compare layers",
            remedy="run ./inv build-image",
        )
    return tuple(found[0].attrs["RootFS"]["Layers"])


def _wheel_names() -> tuple[frozenset[str], frozenset[str]]:
    """Give the recipes that an image must have wheels of: without torch, and with it."""
    from dih20.wheels.recipes import load_all

    must = [recipe for recipe in load_all() if not recipe.optional]
    plain = [recipe for recipe in must if recipe.drop_in or not recipe.build.torch]
    return frozenset(r.name for r in plain), frozenset(r.name for r in must)
