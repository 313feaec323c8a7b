"""Gather what is wanted: the image in the local engine, the wheels for it, the patched engine tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dih20.config import HostConfig, load_image
from dih20.console import Console
from dih20.deploy.wanted import Wanted, WantedImage, WantedTree, WantedWheel, require_fitting
from dih20.errors import ImageError
from dih20.image.archive import image_layers
from dih20.image.newest import newest
from dih20.lock import Lock

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

REPOSITORY = "di-h20"
_CARRIED = ("dih20.base", "dih20.lock", "dih20.python-tag", "dih20.torch")


def find_image(client: docker.DockerClient, lock: Lock, base: str, tag: str = "") -> WantedImage:
    """Give the image to deploy: by tag, else the newest of this base and of the lock in force."""
    if tag:
        layers = image_layers(client, tag)
        return _wanted_image(client.images.get(tag), tag, layers.image_id, client)
    ours = [
        image
        for image in client.images.list(name=REPOSITORY)
        if image.labels.get("dih20.owner") == "dih20" and image.labels.get("dih20.role") == "image"
    ]
    told = {"dih20.lock": lock.identity, "dih20.base": base}
    fitting = [image for image in ours if told.items() <= image.labels.items()]
    if not fitting:
        raise ImageError(
            found=f"no {REPOSITORY} image on base {base} of lock {lock.identity[:12]} in the local engine; "
            f"there: {', '.join(map(_described, ours)) or 'none'}",
            expected="the image that belongs to the lock and to configs/images in force",
            remedy="run `./inv build-image`, or name another with --image TAG",
        )
    latest = newest(fitting)
    own = [t for t in latest.tags if t.startswith(f"{REPOSITORY}:")]
    return _wanted_image(latest, own[0], str(latest.id), client)


def _described(image: Image) -> str:
    labels = image.labels
    return f"{image.tags[0]} ({labels.get('dih20.base')}, lock {labels.get('dih20.lock', '')[:12]})"


def _wanted_image(
    image: Image, tag: str, image_id: str, client: docker.DockerClient
) -> WantedImage:
    from dataclasses import replace

    # One name travels: other tags of the same image are this machine's own affair.
    layers = replace(image_layers(client, image_id), tags=(tag,))
    return WantedImage(layers=layers, tag=tag, labels=dict(image.labels))


def gather_wanted(
    ui: Console, client: docker.DockerClient, host: HostConfig, lock: Lock, tag: str = ""
) -> Wanted:
    """Give everything that is to stand on a host; wheels that do not fit the image are refused here."""
    from dih20.patches import patchset_identity

    image = find_image(client, lock, load_image().base, tag)
    wheels = _wheels(client, image, lock)
    require_fitting(image, wheels)
    has_engine = any(wheel.name == "deepinfer" for wheel in wheels)
    labels = {key: image.labels.get(key, "") for key in _CARRIED}
    return Wanted(
        host=host,
        image=image,
        wheels=wheels,
        tree=None if has_engine else _tree(ui, lock),
        labels={**labels, "dih20.patchset": patchset_identity(lock)},
        nccl=lock.nccl().version,
    )


def _wheels(client: docker.DockerClient, image: WantedImage, lock: Lock) -> tuple[WantedWheel, ...]:
    from dih20.wheels.recipes import load_all
    from dih20.wheels.wheel_set import wheels_for

    recipes = {recipe.name: recipe for recipe in load_all()}
    return tuple(
        WantedWheel(
            path=stored.path,
            name=_distribution(stored.path),
            version=stored.version,
            tags=stored.tags,
            sha256=stored.sha256,
            torch=stored.parts.get("torch", "none"),
            imports=tuple(name for name in recipes[stored.name].imports if "/" not in name),
        )
        for stored in wheels_for(client, image.tag, lock)
    )


def _distribution(wheel: Path) -> str:
    """Give the distribution's name as the wheel has it: a drop-in's is not that of what it stands in for."""
    from packaging.utils import parse_wheel_filename

    return str(parse_wheel_filename(wheel.name)[0])


def _tree(ui: Console, lock: Lock) -> WantedTree:
    from dih20.patches import prepare_tree

    prepared = prepare_tree(ui, lock)
    return WantedTree(path=prepared.path, identity=prepared.identity)
