"""What a container says of itself: its labels, its image, and the wheels that are installed in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dih20.console import Console
from dih20.errors import UsageError
from dih20.explain import image as images
from dih20.explain.here import compare_with_here
from dih20.provenance.record import Record

if TYPE_CHECKING:
    from docker.models.containers import Container

INSTALLED = Path(__file__).resolve().parent / "inside" / "installed.py"
_SHOWN = ("host", "lock", "patchset", "wheels", "config")


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A distribution with a record of ours inside a container, and its files that are not as installed."""

    name: str
    version: str
    record: Record
    changed: tuple[str, ...]


def explain_container(ui: Console, container: Container) -> dict[str, Any]:
    """Print where a container came from; the wheels are read where it runs."""
    labels = images.labels_of(container.attrs)
    if labels.get("dih20.owner") != "dih20":
        raise UsageError(
            found=f"container {container.name} carries no label dih20.owner=dih20",
            expected="a container of a deploy",
            remedy="name another one; `docker ps --all --filter label=dih20.owner=dih20` lists them",
        )
    attrs = container.attrs
    ui.line(f"container {container.name}   {container.short_id}, {container.status}, from {attrs['Config']['Image']}")  # fmt: skip
    for name in _SHOWN:
        ui.line(f"  {name:<12} {labels.get(f'dih20.{name}', 'no label')}")
    found = installed_in(container)
    for entry in found:
        answer = compare_with_here(entry.record)
        ui.line(f"  {'wheel':<12} {entry.name} {entry.version}, identity {entry.record.identity[:12]}; {'; '.join(answer.lines)}")  # fmt: skip
    if container.status != "running":
        ui.line(f"  {'wheel':<12} not read: the container is {container.status}")
    image = images.labels_of(_image_of(container))
    answer = images.compare_with_here(image)
    for line in answer.lines:
        ui.line(f"  {'image':<12} {line}")
    return {
        "kind": "container",
        "name": container.name,
        "id": container.id,
        "status": container.status,
        "labels": images.ours(labels),
        "wheels": [
            {"name": e.name, "version": e.version, "record": e.record.model_dump(mode="json"), "changed": list(e.changed)}
            for e in found
        ],
        "cache": answer.as_dict(),
    }  # fmt: skip


def _image_of(container: Container) -> dict[str, Any]:
    return dict(container.client.images.get(container.attrs["Image"]).attrs) if container.client else {}  # fmt: skip


def installed_in(container: Container) -> list[Installed]:
    """Give the distributions that carry a record, with the files that differ from what was installed."""
    if container.status != "running":
        return []
    done: Any = container.exec_run(_argv(), demux=True)
    out, err = done.output
    if done.exit_code != 0:
        raise UsageError(
            found=f"python3 in container {container.name} exited {done.exit_code}: {(err or b'').decode(errors='replace').strip()[-300:]}",
            expected="python3, as every di-h20 image has it",
            remedy=f"look with `docker exec -it {container.name} python3`",
        )
    return [_installed(entry) for entry in json.loads(out)]


def _argv() -> list[str]:
    return ["python3", "-I", "-c", INSTALLED.read_text()]


def _installed(entry: dict[str, Any]) -> Installed:
    try:
        record = Record.model_validate_json(entry["record"])
    except ValidationError as fault:
        raise UsageError(
            found=f"{entry['name']} {entry['version']} in the container holds a record of another form: {fault.errors()[0]}",
            expected="a record as this version of the tool writes it",
            remedy="use the version of the tool that deployed it",
        ) from fault
    return Installed(
        name=entry["name"],
        version=entry["version"],
        record=record,
        changed=tuple(entry["changed"]),
    )
