"""Doctor checks of what image builds need on this machine: the engine, its store, disk, debootstrap."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dih20.doctor.registry import Finding, Subject, check
from dih20.errors import ToolError
from dih20.paths import cache_dir

ENGINE_NEEDS_GB = 40  # the vLLM base unpacked, and what is laid on it
CACHE_NEEDS_GB = 8


@check("docker engine", where="local")
def docker_engine(subject: Subject) -> Iterator[Finding]:
    """The engine answers; a store that takes only complete archives makes deploys slower."""
    from dih20.image.archive.layers import store_kind_of
    from dih20.image.engine import connect

    client = connect()
    try:
        facts = client.info()
        version = client.version()
    finally:
        client.close()
    yield Finding.ok(
        f"Engine {version['Version']}, API {version['ApiVersion']}, {facts['Driver']}, data in {facts['DockerRootDir']}"
    )
    if store_kind_of(facts.get("DriverStatus") or []) == "containerd":
        yield Finding.warn(
            "the engine keeps images in containerd",
            expected="a graph driver such as overlay2, for archives that hold only missing layers",
            remedy='nothing must be done: complete archives are sent; or set features: {"containerd-snapshotter": false}',
        )
    yield from _free(Path(facts["DockerRootDir"]), ENGINE_NEEDS_GB, "the engine's data")


@check("download cache", where="local")
def download_cache(subject: Subject) -> Iterator[Finding]:
    """The cache has room for what is fetched."""
    folder = cache_dir()
    while not folder.exists():
        folder = folder.parent
    yield from _free(folder, CACHE_NEEDS_GB, "the cache (DI_CACHE)")


@check("stand-in base", where="local")
def stand_in_base(subject: Subject) -> Iterator[Finding]:
    """The stand-in base can be made here; it is needed only where no registry is reached."""
    from dih20.image.debootstrap import check_machine

    try:
        check_machine()
    except ToolError as lacking:
        yield Finding.warn(
            f"{lacking.found}; the stand-in base cannot be made here",
            expected=f"{lacking.expected} (only for a rehearsal)",
            remedy=lacking.remedy,
        )
        return
    yield Finding.ok(f"debootstrap is here, user id {os.geteuid()}")


def _free(folder: Path, needed_gb: int, what: str) -> Iterator[Finding]:
    if not folder.exists():
        yield Finding.not_run(f"{what}: {folder} is on the engine's machine, not on this one")
        return
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb >= needed_gb:
        yield Finding.ok(f"{free_gb:.0f} GB free for {what}")
        return
    yield Finding.warn(
        f"{free_gb:.0f} GB free in {folder} for {what}",
        expected=f"{needed_gb} GB for the image on the vLLM base",
        remedy="free space there: `docker image prune`, or another DI_CACHE",
    )
