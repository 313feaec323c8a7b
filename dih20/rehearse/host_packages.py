"""Install what a rehearsal needs on this machine, after naming it: Debian or Ubuntu, as root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass

from dih20.console import Console
from dih20.errors import UsageError
from dih20.hosts.runner import LocalRunner


@dataclass(frozen=True, kw_only=True)
class HostPackage:
    """A Debian package, known to be present by a program it brings.

    Args:
        mark: of the tests that alone need it; empty where others need it as well.
    """

    package: str
    program: str
    purpose: str
    mark: str = ""


NEEDED = (
    HostPackage(
        package="docker.io", program="dockerd", purpose="two private engines", mark="docker"
    ),
    HostPackage(package="openssh-server", program="sshd", purpose="a private sshd", mark="ssh"),
    HostPackage(package="openssh-client", program="ssh-keygen", purpose="throwaway keys"),
    HostPackage(package="debootstrap", program="debootstrap", purpose="the stand-in base"),
    HostPackage(package="zstd", program="zstd", purpose="image deltas"),
    HostPackage(package="git", program="git", purpose="the checkout and upstream sources"),
)
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def find_program(name: str) -> str | None:
    """Find a program on PATH or in the sbin folders, which a user's PATH may lack."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_SBIN))


def missing_packages(without: Collection[str] = ()) -> list[HostPackage]:
    """Give what is not here, less what only tests with these marks need."""
    needed = (entry for entry in NEEDED if entry.mark not in without)
    return [entry for entry in needed if find_program(entry.program) is None]


def ensure_host_packages(ui: Console, without: Collection[str] = ()) -> None:
    """Name what is missing, then install it; raise UsageError where that cannot be done."""
    missing = missing_packages(without)
    if not missing:
        return
    names = [entry.package for entry in missing]
    for entry in missing:
        ui.line(f"  needed: {entry.package} ({entry.purpose})")
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UsageError(
            found=f"{', '.join(e.program for e in missing)} not found, and this is not root on Debian or Ubuntu",
            expected="these programs, or root and apt-get to install them",
            remedy=f"install {' '.join(names)} with this system's package manager, then run again",
        )
    apt = LocalRunner()
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with ui.step("install", " ".join(names)):
        apt.run(["apt-get", "update", "-qq"], env=quiet, timeout_s=300)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
        apt.run(install, env=quiet, timeout_s=900)
    if still := missing_packages(without):
        raise UsageError(
            found=f"after apt-get install: still no {', '.join(e.program for e in still)}",
            expected=f"programs of the packages {', '.join(e.package for e in still)}",
            remedy=f"run `apt-get install {' '.join(e.package for e in still)}` and read what it prints",
        )
