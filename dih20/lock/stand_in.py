"""Resolve the package list of a base that is made here, as debootstrap would choose it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dih20.errors import LockError
from dih20.lock.apt_root import AptRoot
from dih20.lock.files import LockedFile
from dih20.paths import shown

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def read_package_list(path: Path) -> list[str]:
    """Give the names in a package list: one a line, comments after #."""
    if not path.is_file():
        raise LockError(
            found=f"no package list {shown(path)}",
            expected="the file that bases: stand-in: packages: in configs/images names",
            remedy="correct packages: there, or take the file back from git",
        )
    lines = (line.split("#", 1)[0].strip() for line in path.read_text().splitlines())
    return sorted({line for line in lines if line})


def resolve_base(apt: AptRoot, names: Sequence[str]) -> list[LockedFile]:
    """Give every package of the base: the minimal system, the listed ones, and what they need."""
    debootstrap = shutil.which("debootstrap", path=f"{_SBIN}:/usr/local/bin:/usr/bin:/bin")
    if not debootstrap:
        raise LockError(
            found="no debootstrap on this machine",
            expected="debootstrap, which makes the stand-in base and says what belongs to it",
            remedy="run `apt-get install debootstrap`, then the command again",
        )
    with tempfile.TemporaryDirectory(prefix="dih20-debs-") as folder:
        command = [debootstrap, "--print-debs", "--variant=minbase", f"--arch={apt.architecture}"]
        command += [f"--include={','.join(names)}", apt.suite, f"{folder}/root", apt.mirror]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
        raise LockError(
            found=f"debootstrap --print-debs exited {done.returncode}: " + "\n  ".join(errors[-8:]),
            expected="the names of the packages of the stand-in base",
            remedy="mend what it names; the list is images/stand-in/packages.txt",
        )
    return apt.pin(done.stdout.split())


def installed_status(apt: AptRoot, packages: Sequence[LockedFile]) -> str:
    """Give the dpkg status text of a machine that holds these packages."""
    stanzas = apt.stanzas([f"{p.name}={p.version}" for p in packages])
    kept: tuple[str, ...] = (
        "Package",
        "Architecture",
        "Version",
        "Multi-Arch",
        "Provides",
        "Essential",
        "Priority",
    )
    # apt takes a package for another build of itself when one of these differs, Installed-Size included
    kept += ("Installed-Size", "Depends", "Pre-Depends", "Conflicts", "Breaks", "Replaces")
    blocks = []
    for stanza in stanzas:
        lines = [f"{key}: {stanza[key]}" for key in kept if key in stanza]
        blocks.append(
            "\n".join([*lines, "Status: install ok installed", "Maintainer: -", "Description: -"])
        )
    return "\n\n".join(blocks) + "\n"


def package_list_digest(packages: Sequence[LockedFile]) -> str:
    """Give the digest of a base made here: over name, version and hash of each package."""
    lines = sorted(f"{p.name} {p.version} {p.sha256}\n" for p in packages)
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()
