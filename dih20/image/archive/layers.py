"""Name the layers of an image and of an engine by chain: a layer together with all below it.

A layer's diff id is the hash of its uncompressed tar. An engine stores a layer under its chain id,
which also covers the layers beneath; `docker load` takes a layer that it holds under the same
chain id from its own store and never looks for its file in the archive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dih20.errors import ImageError

if TYPE_CHECKING:
    import docker

StoreKind = Literal["graphdriver", "containerd"]


@dataclass(frozen=True, kw_only=True)
class ImageLayers:
    """An image as an ordered list of layers, the base first."""

    image_id: str
    diff_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()

    @property
    def chain_ids(self) -> tuple[str, ...]:
        return chain_ids(self.diff_ids)


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """Give the chain id at each position: the first diff id, then sha256("parent diff")."""
    chain: list[str] = []
    for diff_id in diff_ids:
        if not chain:
            chain.append(diff_id)
        else:
            joined = f"{chain[-1]} {diff_id}".encode()
            chain.append("sha256:" + hashlib.sha256(joined).hexdigest())
    return tuple(chain)


def image_layers(client: docker.DockerClient, image: str) -> ImageLayers:
    """Give the layers of an image that the engine holds, by tag or id."""
    from docker.errors import ImageNotFound

    try:
        facts = client.images.get(image).attrs
    except ImageNotFound:
        raise ImageError(
            found=f"the engine holds no image {image}",
            expected="the image that is to be sent",
            remedy="./inv build-image",
        ) from None
    return ImageLayers(
        image_id=facts["Id"],
        diff_ids=tuple(facts["RootFS"].get("Layers") or ()),
        tags=tuple(facts.get("RepoTags") or ()),
    )


def held_layers(client: docker.DockerClient) -> frozenset[str]:
    """Give the chain ids of every layer that some image of this engine keeps alive."""
    from docker.errors import ImageNotFound

    held: set[str] = set()
    for entry in client.api.images(all=True):
        try:
            facts = client.images.get(entry["Id"]).attrs
        except ImageNotFound:  # removed by somebody since the list was made
            continue
        held.update(chain_ids(tuple(facts["RootFS"].get("Layers") or ())))
    return frozenset(held)


def store_kind(client: docker.DockerClient) -> StoreKind:
    """Say how the engine stores images; the containerd store takes only complete archives."""
    return store_kind_of(client.info().get("DriverStatus") or [])


def store_kind_of(driver_status: Sequence[Sequence[str]]) -> StoreKind:
    """Read the store kind out of `docker info` (DriverStatus, a list of pairs)."""
    kinds = {str(pair[0]): str(pair[1]) for pair in driver_status if len(pair) == 2}
    return "containerd" if "containerd" in kinds.get("driver-type", "") else "graphdriver"
