"""Say what an image is made of: what each layer adds, the largest files, times and hits of the last build."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import ImageError
from dih20.image import engine
from dih20.image.archive.normal_config import NO_LAYER
from dih20.image.archive.tar_header import FILE, FOLDER, LINK, Member
from dih20.image.build_record import StepTime, recorded
from dih20.image.newest import newest
from dih20.image.normal_image import readable_layers

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

LARGEST = 15
_MARK = "dih20 step "


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """What one layer adds; of the base, all its layers together, nothing but the size is looked at."""

    name: str
    size_bytes: int
    files: int | None = None
    folders: int | None = None
    hidden: int | None = None  # files and folders of layers below that it removes
    seconds: float | None = None  # how long its step ran, here, when it was last made
    hit: bool | None = None  # whether the last build on this machine found it


def image_report(ui: Console, *, image: str = "") -> dict[str, Any]:
    """Print the report of an image of the local engine, and give it as plain values."""
    with closing(engine.connect()) as client:
        chosen = _chosen(client, image)
        return report_on(ui, client, chosen)


def report_on(ui: Console, client: docker.DockerClient, image: Image) -> dict[str, Any]:
    """Report on one image."""
    times, normalise_s = recorded(str(image.labels.get("dih20.identity", "")))
    layers, largest = _look(ui, client, image, times)
    name = image.tags[0] if image.tags else str(image.id)
    _show(ui, name, layers, largest)
    hits = [layer for layer in layers if layer.hit]
    told = [layer for layer in layers if layer.hit is not None]
    ui.line(
        f"last build here: {len(hits)} of {len(told)} steps were found"
        if told
        else "it was not built on this machine, or build/ was emptied: no times"
    )
    return {
        "image": name,
        "id": image.id,
        "size_bytes": image.attrs["Size"],
        "layers": [asdict(layer) for layer in layers],
        "largest": largest,
        "hits": len(hits),
        "normalise_s": normalise_s,
    }


def _look(
    ui: Console, client: docker.DockerClient, image: Image, times: Mapping[str, StepTime]
) -> tuple[list[LayerReport], list[dict[str, Any]]]:
    """Read our layers; the base's, which are nobody's to change, are only summed up."""
    entries = list(reversed(image.history()))
    diff_ids = list(image.attrs["RootFS"].get("Layers") or [])
    base_bytes = sum(int(entry["Size"]) for entry in entries if not _step_of(entry))
    steps = _own_layers(entries, diff_ids)
    own = [diff_id for diff_id in steps.values() if diff_id]
    base = diff_ids[: len(diff_ids) - len(own)]
    layers = [LayerReport(name=f"base, {len(base)} layers", size_bytes=base_bytes)]
    files: list[tuple[int, str, str]] = []
    with readable_layers(ui, client, str(image.id), base, own) as (found, _):
        for step, diff_id in steps.items():
            members = found[diff_id].members() if diff_id else []
            layers.append(_counted(step, members, times.get(step)))
            files += ((m.size, m.name.decode("utf-8", "replace"), step) for m in members if m.size)
    largest = [
        {"path": f"/{path}", "size_bytes": size, "step": step}
        for size, path, step in heapq.nlargest(LARGEST, files)
    ]
    return layers, largest


def _own_layers(entries: Sequence[Mapping[str, Any]], diff_ids: Sequence[str]) -> dict[str, str]:
    """Give each step, the lowest first, with its layer, "" for a step that left none."""
    ours = [entry for entry in entries if _step_of(entry)]
    with_layer = [_step_of(entry) for entry in ours if _has_layer(entry)]
    layers = dict(zip(with_layer, diff_ids[len(diff_ids) - len(with_layer) :], strict=True))
    return {_step_of(entry): layers.get(_step_of(entry), "") for entry in ours}


def _has_layer(entry: Mapping[str, Any]) -> bool:
    """Say whether a step left a layer: an image in its normal form tells, else only the size does."""
    if entry.get("Comment") == NO_LAYER:
        return False
    return bool(entry["Size"]) or str(entry.get("CreatedBy") or "").startswith(_MARK)


def _step_of(entry: Mapping[str, Any]) -> str:
    for said in (entry.get("CreatedBy"), entry.get("Comment")):
        if said and str(said).startswith(_MARK):
            return str(said).removeprefix(_MARK)
    return ""


def _counted(step: str, members: list[Member], time: StepTime | None) -> LayerReport:
    return LayerReport(
        name=step,
        size_bytes=sum(member.size for member in members),
        files=sum(member.kind in (FILE, LINK) and not member.is_whiteout for member in members),
        folders=sum(member.kind == FOLDER for member in members),
        hidden=sum(member.is_whiteout for member in members),
        seconds=time.seconds if time else None,
        hit=time.hit if time else None,
    )


def _show(ui: Console, name: str, layers: list[LayerReport], largest: list[dict[str, Any]]) -> None:
    total = sum(layer.size_bytes for layer in layers)
    rows = [
        [
            layer.name,
            f"{layer.size_bytes / 1e6:.1f} MB",
            "" if layer.files is None else str(layer.files),
            "" if not layer.hidden else str(layer.hidden),
            "" if layer.seconds is None else f"{layer.seconds:.1f} s",
            {True: "hit", False: "miss", None: ""}[layer.hit],
        ]
        for layer in layers
    ]
    rows.append(["total", f"{total / 1e6:.1f} MB", "", "", "", ""])
    columns = ["layer", "adds", "files", "hides", "made in", "last build"]
    ui.table(columns, rows, title=name)
    cells = [[f"{f['size_bytes'] / 1e6:.1f} MB", f["step"], f["path"]] for f in largest]
    ui.table(["size", "step", "file"], cells, title="largest files of our layers")


def _chosen(client: docker.DockerClient, image: str) -> Image:
    from docker.errors import ImageNotFound

    if image:
        try:
            return client.images.get(image)
        except ImageNotFound:
            raise _none(f"no image {image}") from None
    found = client.images.list(filters={"label": ["dih20.owner=dih20", "dih20.role=image"]})
    named = [one for one in found if one.tags]
    if not named:
        raise _none("no image of ours")
    return newest(named)


def _none(what: str) -> ImageError:
    return ImageError(
        found=f"{what} in this engine",
        expected="an image that ./inv build-image made",
        remedy="run ./inv build-image, or name another with --image",
    )
