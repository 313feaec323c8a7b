"""Before any step runs: the locked packages are whole, given what the base holds already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.console import Console
from dih20.debs.control import read_control
from dih20.debs.database import Package
from dih20.debs.relations import faults
from dih20.errors import LockError
from dih20.image.package_changes import installed_in
from dih20.lock import Base, LockedFile
from dih20.lock.newer_debs import newer_debs

if TYPE_CHECKING:
    import docker


def check_dependencies(
    ui: Console,
    client: docker.DockerClient,
    image: str,
    base: Base,
    debs: Sequence[tuple[LockedFile, Path]],
) -> None:
    """Raise LockError when locked packages need what neither they nor the base hold, or conflict.

    What is wrong in the base itself is not counted: nothing here makes it better or worse.
    """
    with ui.step("check", f"dependencies of {len(debs)} locked packages") as step:
        there = [p for p in installed_in(client, image).values() if p.is_installed]
        added = [_read(deb, path) for deb, path in debs]
        names = {package.name for package in added}
        after = [p for p in there if p.name not in names] + added
        before = set(faults(there))
        if found := [line for line in faults(after) if line not in before]:
            raise LockError(
                found=f"the locked packages do not fit on base {base.name}:\n  "
                + "\n  ".join(found[:12]),
                expected="every dependency in the base or in di.lock.yaml, and no conflict",
                remedy=f"run `{newer_debs(base.name)}`, and look at what it changes",
            )
        step.note = f"all answered, on {len(there)} packages of {base.name}"


def _read(deb: LockedFile, path: Path) -> Package:
    package = read_control(path)
    if (package.name, package.version) != (deb.name, deb.version):
        raise LockError(
            found=f"{deb.filename} holds {package}",
            expected=f"{deb.name} {deb.version}, as the lock says",
            remedy="run `./inv lock --check`, then `./inv lock --upgrade --only apt`",
        )
    return package
