"""Find out what a name is, a wheel file, a container or an image, and explain it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import UsageError
from dih20.explain.container import explain_container
from dih20.explain.image import explain_image
from dih20.explain.wheel import explain_wheel

if TYPE_CHECKING:
    import docker


def explain(
    ui: Console, name: str, *, host: str = "", sbom: bool = False, accept_host_key: str = ""
) -> dict[str, Any]:
    """Explain a wheel by its path, else a container or an image by name or id; with `host`, there."""
    if name.endswith(".whl"):
        if host:
            raise UsageError(
                found=f"{name} with --host {host}",
                expected="a wheel of this machine; its file says everything",
                remedy="leave out --host, or name the container that it is installed in",
            )
        return _wheel(ui, Path(name), sbom)
    if not host and Path(name).exists():
        raise UsageError(
            found=f"{name} is there and is no wheel",
            expected="a wheel file, or an image or container by name or id",
            remedy="correct the name; `./inv image-report` and `docker ps -a` list what there is",
        )
    with _engine(host, accept_host_key) as client:
        return _in_engine(ui, client, name, host or "this machine", sbom)


def _wheel(ui: Console, path: Path, sbom: bool) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(
            found=f"no file {path}",
            expected="a wheel, for instance wheels/IDENTITY/NAME.whl",
            remedy="correct the path; `ls wheels/*/*.whl` lists the store",
        )
    result = explain_wheel(ui, path)
    return {**result, "sbom": _sbom_inside(path)} if sbom else result


def _sbom_inside(path: Path) -> dict[str, Any]:
    import json
    import zipfile

    from dih20.provenance.sbom import WHEEL_MEMBER

    with zipfile.ZipFile(path) as archive:
        (member,) = [n for n in archive.namelist() if n.endswith(f".dist-info/{WHEEL_MEMBER}")]
        content: dict[str, Any] = json.loads(archive.read(member))
        return content


@contextmanager
def _engine(host: str, accept_host_key: str) -> Iterator[docker.DockerClient]:
    """Give a client of the engine here, or of a host's through SSH."""
    if host:
        from dih20.config import load_host
        from dih20.hosts.ssh import connect

        with connect(load_host(host), accept_host_key=accept_host_key) as runner:
            yield runner.docker()
        return
    from dih20.image import engine

    client = engine.connect()
    try:
        yield client
    finally:
        client.close()


def _in_engine(
    ui: Console, client: docker.DockerClient, name: str, where: str, sbom: bool
) -> dict[str, Any]:
    from docker.errors import ImageNotFound, NotFound

    try:
        container = client.containers.get(name)
    except NotFound:
        pass
    else:
        return explain_container(ui, container)
    try:
        return explain_image(ui, client.images.get(name).attrs, name, with_sbom=sbom)
    except ImageNotFound:
        raise UsageError(
            found=f"no container and no image {name} in the engine of {where}, and it is no .whl file",
            expected="a wheel's path, a container's name or an image's tag",
            remedy="correct the name, or add --host NAME for the engine of a host",
        ) from None
