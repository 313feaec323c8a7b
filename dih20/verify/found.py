"""What runs on a host: the container, its image, the wheels installed in it, the NCCL it maps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.explain.container import Installed, installed_in
from dih20.explain.image import labels_of
from dih20.image.inside import nccl

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container


@dataclass(frozen=True, kw_only=True)
class NcclFact:
    """One verdict of the NCCL check inside: header, distribution or mapped library."""

    check: str
    status: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """A container as the engine describes it; image is what it was created from, tagged what has that name now."""

    attrs: Mapping[str, Any]
    image: Mapping[str, Any]
    tagged: str
    wheels: tuple[Installed, ...] = ()
    nccl: tuple[NcclFact, ...] = field(default=())

    @property
    def labels(self) -> dict[str, str]:
        return labels_of(self.attrs)

    @property
    def image_labels(self) -> dict[str, str]:
        return labels_of(self.image)

    @property
    def is_running(self) -> bool:
        return bool(self.attrs["State"]["Status"] == "running")

    @property
    def torch(self) -> str:
        return self.labels.get("dih20.torch") or "none"


def look(client: docker.DockerClient, name: str, nccl_version: str) -> Found | None:
    """Ask the host's engine, and the container itself when it runs; None when there is no such container."""
    from docker.errors import ImageNotFound, NotFound

    try:
        container = client.containers.get(name)
    except NotFound:
        return None
    attrs = container.attrs
    try:
        tagged = str(client.images.get(attrs["Config"]["Image"]).id)
    except ImageNotFound:
        tagged = ""
    found = Found(attrs=attrs, image=client.images.get(attrs["Image"]).attrs, tagged=tagged)
    if not found.is_running:
        return found
    return Found(
        attrs=attrs,
        image=found.image,
        tagged=tagged,
        wheels=tuple(installed_in(container)),
        nccl=_nccl(container, nccl_version) if found.torch != "none" else (),
    )


def _nccl(container: Container, version: str) -> tuple[NcclFact, ...]:
    script = Path(nccl.__file__).read_text()
    argv = ["python3", "-c", script, "--expect", version, "--json"]
    done: Any = container.exec_run(argv, demux=True)
    out, err = done.output
    try:
        verdicts = json.loads(out or b"")["verdicts"]
    except (ValueError, KeyError):
        said = (err or out or b"").decode(errors="replace").strip()[-200:]
        return (NcclFact(check="check", status="failed", note=f"exited {done.exit_code}: {said}"),)
    return tuple(
        NcclFact(check=check, status=status, note=note) for check, status, note in verdicts
    )
