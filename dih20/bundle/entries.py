"""Files of the bundle's archive, by name; nothing is read before it is written."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dih20.errors import WheelError

# what changes seldom comes first, so that its blocks are the same in the next bundle
GROUPS_IN_ORDER = (
    "site",
    "site-nccl",
    "site-build",
    "headers",
    "vendor",
    "sources",
    "own",
)
_LEFT_OUT = {"__pycache__", ".git", "build", "dist"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of the archive.

    Args:
        name: its path on the host, below the folder that the user chooses; its first part is its group.
        open: gives its content.
        link: target of a symbolic link, which has no content.
    """

    name: str
    size: int
    open: Callable[[], BinaryIO]
    executable: bool = False
    link: str = ""

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]


def of_bytes(name: str, content: bytes) -> Entry:
    return Entry(name=name, size=len(content), open=lambda: io.BytesIO(content))


def of_file(name: str, path: Path) -> Entry:
    facts = path.stat()
    executable = bool(facts.st_mode & stat.S_IXUSR)
    return Entry(name=name, size=facts.st_size, open=lambda: path.open("rb"), executable=executable)


def of_tree(name: str, root: Path) -> Iterator[Entry]:
    """Give every file below a folder; caches, build output and hidden files stay behind."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            f for f in folders if f not in _LEFT_OUT and not f.startswith(".") and "-info" not in f
        )
        for file in sorted(files):
            if file.startswith(".") or file.endswith(".pyc"):
                continue
            path = Path(folder, file)
            inside = f"{name}/{path.relative_to(root).as_posix()}"
            if path.is_symlink():
                target = str(path.readlink())
                yield Entry(name=inside, size=0, open=io.BytesIO, link=target)
            else:
                yield of_file(inside, path)


def of_wheel(name: str, wheel: Path, keep: Callable[[str], bool] | None = None) -> Iterator[Entry]:
    """Give a wheel's files as they lie once installed: libraries at the top, scripts in bin."""
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if not m.is_dir()]
    for member in members:
        place = _installed(member.filename)
        if place is None or (keep and not keep(place)):
            continue
        mode = member.external_attr >> 16
        yield Entry(
            name=f"{name}/{place}",
            size=member.file_size,
            open=_opener(wheel, member.filename),
            executable=bool(mode & stat.S_IXUSR) or place.startswith("bin/"),
        )


def _installed(member: str) -> str | None:
    """Give where a member lies in site-packages; None for data and C headers of a package."""
    top, _, rest = member.partition("/")
    if not top.endswith(".data"):
        return member
    kind, _, inside = rest.partition("/")
    return {"purelib": inside, "platlib": inside, "scripts": f"bin/{inside}"}.get(kind)


def _opener(wheel: Path, member: str) -> Callable[[], BinaryIO]:
    def read() -> BinaryIO:
        with zipfile.ZipFile(wheel) as archive:
            return io.BytesIO(archive.read(member))

    return read


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort by group and name. Two packages may hold the same file only when it is the same, byte for byte."""
    known: dict[str, Entry] = {}
    for entry in entries:
        other = known.setdefault(entry.name, entry)
        if other is not entry and _content_hash(other) != _content_hash(entry):
            raise WheelError(
                found=f"two packages hold {entry.name}, with different content",
                expected="one owner for each file",
                remedy="leave one of the packages out with --without, or correct the lock",
            )
    return sorted(known.values(), key=lambda e: (GROUPS_IN_ORDER.index(e.group), e.name))


def _content_hash(entry: Entry) -> str:
    with entry.open() as content:
        return hashlib.sha256(content.read() + entry.link.encode()).hexdigest()
