"""Say where two images part: the first layer, the first file in it and its bytes, or the configuration."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dih20.console import Console
from dih20.image.archive.normal_layer import NormalLayer
from dih20.image.archive.raw_layer import RawLayer
from dih20.image.build import BuiltImage
from dih20.image.normal_image import readable_layers
from dih20.paths import cache_dir
from dih20.rebuild.layer_difference import MemberDifference, differences

if TYPE_CHECKING:
    import docker

MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class ImageDifference:
    """The first layer that differs, with its first members; or, where all layers are equal, what is said."""

    layer: str
    members: tuple[MemberDifference, ...] = ()
    said: str = ""

    @property
    def text(self) -> str:
        return f"{self.layer}: {self.members[0].text if self.members else self.said}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "members": [member.as_dict() for member in self.members],
            **({"said": self.said} if self.said else {}),
        }


def compare_images(
    ui: Console, client: docker.DockerClient, first: BuiltImage, second: BuiltImage
) -> ImageDifference | None:
    """Give where two builds of the same steps part, or None when they are one image."""
    if first.id == second.id:
        return None
    one, other = (client.images.get(image.id).attrs for image in (first, second))
    here, there = (list(facts["RootFS"].get("Layers") or []) for facts in (one, other))
    names = {diff_id: f"step {name}" for name, diff_id in (*second.layers, *first.layers)}
    for number, (mine, theirs) in enumerate(itertools.zip_longest(here, there)):
        if mine == theirs:
            continue
        name = names.get(mine or theirs, f"layer {number + 1}")
        if mine is None or theirs is None:
            return ImageDifference(layer=name, said="only one of the images has this layer")
        with (
            _layer(ui, client, first.id, here, mine) as a,
            _layer(ui, client, second.id, there, theirs) as b,
        ):
            found = tuple(itertools.islice(differences(a, b), MOST_NAMED))
        return ImageDifference(layer=name, members=found, said="" if found else "the tars differ")
    return ImageDifference(layer="configuration", said=_first_key(one, other))


@contextlib.contextmanager
def _layer(
    ui: Console, client: docker.DockerClient, image: str, layers: list[str], diff_id: str
) -> Iterator[BinaryIO]:
    """Give one layer's tar as a file; what the engine holds is in normal form already."""
    spool = cache_dir() / "archive"
    spool.mkdir(parents=True, exist_ok=True)
    below = layers[: layers.index(diff_id)]
    with (
        readable_layers(ui, client, image, below, [diff_id]) as (found, _),
        tempfile.TemporaryFile(dir=spool) as file,
    ):
        raw: RawLayer = found[diff_id]
        for chunk in NormalLayer(raw).chunks():
            file.write(chunk)
        file.seek(0)
        yield cast(BinaryIO, file)


def _first_key(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    mine, theirs = (dict(_flat("", facts.get("Config") or {})) for facts in (one, other))
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            return f"{key} is {mine.get(key)!r} / {theirs.get(key)!r}"
    return "the history differs"


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value
