"""Write a root file system as a tar whose bytes depend on its content alone.

Left out is what differs from run to run or from machine to machine: caches, logs, package lists,
the machine id, host keys and the mirror that was used; and manuals and translations, which nobody
reads in an image.
"""

from __future__ import annotations

import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

FIXED_MTIME = 1_735_689_600  # 2025-01-01; one time for every file, so that no build time is left

_EMPTY_FOLDERS = (
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "var/tmp",
    "var/log",
    "var/cache",
    "var/lib/apt/lists",
    "root",
)
_LEFT_OUT = re.compile(
    r"^usr/share/(man|info|locale)/."
    r"|^usr/share/doc/[^/]+/(?!copyright$)"
    r"|^etc/ssh/ssh_host_"
    r"|^var/lib/(apt/extended_states|systemd/random-seed|dbus/machine-id)$"
    r"|^var/lib/dpkg/[a-z]+-old$"
    r"|^etc/(passwd|group|shadow|gshadow|subuid|subgid)-$"
    r"|^debootstrap(/|$)"
    r"|^\.dockerenv$"
)
_EMPTIED = ("etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/apt/sources.list")
_ROOT_ONLY = {"tmp": 0o1777, "var/tmp": 0o1777}


def write_rootfs(
    root: Path, target: BinaryIO, advance: Callable[[float], None] | None = None
) -> None:
    """Write all of `root` to `target`: sorted, one fixed time, numeric owners, no sockets or devices."""
    hardlinks: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as out:
        for path, name in _walk(root, ""):
            entry = _entry(path, name, hardlinks)
            if entry is None:
                continue
            if not entry.isreg():
                out.addfile(entry)
                continue
            if name == "etc/shadow":
                _add_shadow(out, entry, path)
                continue
            with path.open("rb") as content:
                out.addfile(entry, content)
            if advance:
                advance(entry.size)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        name = prefix + path.name
        if _LEFT_OUT.search(name):
            continue
        yield path, name
        if path.is_dir() and not path.is_symlink() and name not in _EMPTY_FOLDERS:
            yield from _walk(path, name + "/")


def _entry(path: Path, name: str, hardlinks: dict[tuple[int, int], str]) -> tarfile.TarInfo | None:
    facts = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.uid, entry.gid = FIXED_MTIME, facts.st_uid, facts.st_gid
    entry.mode = _ROOT_ONLY.get(name, stat.S_IMODE(facts.st_mode))
    if stat.S_ISDIR(facts.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(facts.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif not stat.S_ISREG(facts.st_mode):
        return None
    elif name in _EMPTIED:
        entry.size = 0
    elif facts.st_nlink > 1 and (first := hardlinks.get((facts.st_dev, facts.st_ino))):
        entry.type, entry.linkname = tarfile.LNKTYPE, first
    else:
        hardlinks[(facts.st_dev, facts.st_ino)] = name
        entry.size = facts.st_size
    return entry


def _add_shadow(out: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    """Write /etc/shadow with the day of the last password change fixed; it is the day of the build."""
    import io

    lines = [line.split(":") for line in path.read_text().splitlines()]
    for fields in lines:
        if len(fields) > 2 and fields[2]:
            fields[2] = str(FIXED_MTIME // 86_400)
    content = "".join(":".join(fields) + "\n" for fields in lines).encode()
    entry.size = len(content)
    out.addfile(entry, io.BytesIO(content))
