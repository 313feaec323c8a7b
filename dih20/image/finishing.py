"""Turn what the last step left into the image: what it says of itself, and its normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dih20.config import ImageConfig
from dih20.console import Console
from dih20.image.archive import store_kind
from dih20.image.image_frame import frame_of
from dih20.image.normal_image import NormalImage, normal_image, raw_image
from dih20.image.run_step import image_config, seal
from dih20.image.steps import refuse_stubs

if TYPE_CHECKING:
    import docker

    from dih20.image.host_normal import HostNormal


def finished(
    ui: Console,
    client: docker.DockerClient,
    config: ImageConfig,
    base: str,
    images: Sequence[tuple[str, str]],
    labels: Mapping[str, str],
    there: HostNormal | None,
) -> NormalImage:
    """Give the image with what it is said to be, in its normal form."""
    refuse_stubs(
        [f"{name}={value}" for name, value in config.environment.items()], f"image {config.name}"
    )
    raw = raw_image(client, base, images)
    said = image_config(client, raw.id, env=config.environment, labels=labels)
    if store_kind(client) == "containerd":
        ui.warn(
            "this engine keeps images in containerd: the image keeps the times of its build, and another "
            "id than on other engines (docs/reproducible.md)"
        )
        return NormalImage(id=seal(client, raw.id, said), steps=raw.steps)
    frame = frame_of(client, base, said, [name for name, _ in images])
    return normal_image(ui, client, raw, frame, there)
