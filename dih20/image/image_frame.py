"""Say what an image on a base says of itself, as far as an engine can be asked."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dih20.image.archive.normal_config import ImageFrame

if TYPE_CHECKING:
    import docker


def frame_of(
    client: docker.DockerClient, base: str, config: Mapping[str, Any], steps: Sequence[str]
) -> ImageFrame:
    """Give what an image on this base says of itself."""
    facts = client.images.get(base).attrs
    return ImageFrame(
        architecture=facts["Architecture"],
        os=facts["Os"],
        variant=facts.get("Variant") or "",
        config=config,
        base_history=base_history(
            client.images.get(base).history(), len(facts["RootFS"].get("Layers") or ())
        ),
        steps=tuple(steps),
    )


def base_history(entries: Sequence[Mapping[str, Any]], layers: int) -> tuple[dict[str, Any], ...]:
    """Give a base's history as an engine tells it, the oldest first, one entry with a layer for each layer.

    The engine does not say which entries have a layer, only their sizes; where that does not add up,
    the layers get entries without a story, since a wrong count makes an engine refuse its history.
    """
    told: list[dict[str, Any]] = []
    for entry in reversed(entries):
        when = datetime.datetime.fromtimestamp(int(entry["Created"]), datetime.UTC)
        said: dict[str, Any] = {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ")}
        for key, name in (("CreatedBy", "created_by"), ("Comment", "comment")):
            if entry.get(key):
                said[name] = entry[key]
        told.append(said if entry["Size"] else {**said, "empty_layer": True})
    if sum("empty_layer" not in entry for entry in told) == layers:
        return tuple(told)
    return tuple({"created_by": f"layer {number} of the base"} for number in range(1, layers + 1))
