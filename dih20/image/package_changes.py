"""A step may change the package database by its locked packages, and by nothing else.

The database is read from outside, before and after the step, so that no script can leave it out.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dih20.debs.database import INSTALLED, Package, parse_status
from dih20.errors import ImageError
from dih20.lock import LockedFile

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

STATUS = "/var/lib/dpkg/status"
Packages = Mapping[tuple[str, str], Package]


def packages_of(container: Container) -> Packages:
    """Give what the package database of a container says; nothing where there is none."""
    from docker.errors import NotFound

    try:
        chunks, _ = container.get_archive(STATUS)
    except NotFound:
        return {}
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        handle = archive.extractfile(archive.getmembers()[0])
        assert handle is not None, "a file has content"
        return parse_status(handle.read().decode("utf-8"))


def installed_in(client: docker.DockerClient, image: str) -> Packages:
    """Give what the package database of an image says."""
    container = client.containers.create(image, entrypoint=["/bin/true"], network_mode="none")
    try:
        return packages_of(container)
    finally:
        container.remove(force=True)


def check_changes(
    step: str, before: Packages, after: Packages, locked: Sequence[LockedFile]
) -> None:
    """Raise ImageError unless exactly the locked packages came, each at its version and configured."""
    wanted = {deb.name: deb.version for deb in locked}
    wrong = []
    for key in sorted(before.keys() | after.keys()):
        name, now = key[0], after.get(key)
        if name in wanted or now == before.get(key):
            continue
        wrong.append(f"{name}: was {_said(before.get(key))}, is {_said(now)}; not in the lock")
    present = {(p.name, p.version) for p in after.values() if p.status == INSTALLED}
    for name, version in sorted(wanted.items()):
        if (name, version) not in present:
            now = next((p for p in after.values() if p.name == name), None)
            wrong.append(f"{name}: is {_said(now)}; the lock says {version}")
    if wrong:
        raise ImageError(
            found=f"step {step} left other packages than the lock names:\n  "
            + "\n  ".join(wrong[:12]),
            expected=f"the {len(wanted)} locked packages of the step, and every other one as it was",
            remedy="name the package under apt: in configs/images and run `./inv lock`; "
            "a step installs what is in /mnt/debs only",
        )


def _said(package: Package | None) -> str:
    if package is None:
        return "absent"
    return (
        package.version if package.status == INSTALLED else f"{package.version} ({package.status})"
    )
