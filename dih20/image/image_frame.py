"""Say what an image on a base says of itself, as far as an engine can be asked."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dih20.image.archive.normal_config import ImageFrame

if TYPE_CHECKING:
    import docker

_MAY_LEAVE_FOLDERS = re.compile(r"\b(WORKDIR|RUN|COPY|ADD)\b")


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

    The engine does not say which entries have a layer, only their sizes. One of size 0 may be a folder
    and no more, as WORKDIR leaves it; where the count still does not fit, the layers get entries
    without a story, since an engine refuses a history of another length.
    """
    oldest_first = list(reversed(entries))
    with_layer = {n for n, entry in enumerate(oldest_first) if entry["Size"]}
    if len(with_layer) < layers:
        with_layer |= {
            n
            for n, entry in enumerate(oldest_first)
            if _MAY_LEAVE_FOLDERS.search(str(entry.get("CreatedBy") or ""))
        }
    if len(with_layer) != layers:
        return tuple({"created_by": f"layer {n} of the base"} for n in range(1, layers + 1))
    return tuple(_told(entry, n in with_layer) for n, entry in enumerate(oldest_first))


def _told(entry: Mapping[str, Any], has_layer: bool) -> dict[str, Any]:
    when = datetime.datetime.fromtimestamp(int(entry["Created"]), datetime.UTC)
    said: dict[str, Any] = {"created": when.isoformat().replace("+00:00", "Z")}
    for key, name in (("CreatedBy", "created_by"), ("Comment", "comment")):
        if entry.get(key):
            said[name] = entry[key]
    return said if has_layer else {**said, "empty_layer": True}
