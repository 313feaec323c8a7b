"""A source tree with changes laid over it: nothing on disk moves until write().

Symbolic links are never followed: a change to one, or below one, is refused.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dih20.errors import PatchError
from dih20.patches.writing import write_files

FILE, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
_NOT_SOURCE = {".git", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A regular file: git's mode (0o100644 or 0o100755) and its bytes."""

    mode: int
    content: bytes


class Tree:
    """Files below a root as they are, or as the changes laid over them say."""

    def __init__(self, root: Path, changes: dict[str, Entry | None] | None = None) -> None:
        self.root = root
        self.changes = dict(changes or {})

    def branch(self) -> Tree:
        """Give a tree with the same state whose further changes do not reach this one."""
        return Tree(self.root, self.changes)

    def read(self, path: str) -> Entry | None:
        """Give a file, or None where there is none; a link or a folder in its place is refused."""
        if path in self.changes:
            return self.changes[path]
        if self._blocked_by_file(path):
            return None
        target = self.root / path
        try:
            info = target.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(info.st_mode):
            raise _not_a_file(path, "a symbolic link" if stat.S_ISLNK(info.st_mode) else "a folder")
        mode = EXECUTABLE if info.st_mode & stat.S_IXUSR else FILE
        return Entry(mode=mode, content=target.read_bytes())

    def put(self, path: str, entry: Entry) -> None:
        """Lay a new or changed file over the tree."""
        if self._blocked_by_file(path):
            raise _not_a_file(path, "below a file")
        if any(other.startswith(f"{path}/") and entry_ for other, entry_ in self.changes.items()):
            raise _not_a_file(path, "a folder")
        self.changes[path] = entry

    def remove(self, path: str) -> None:
        self.changes[path] = None

    def _blocked_by_file(self, path: str) -> bool:
        """Say whether a parent is a file; refuse when one is a link."""
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            parent = "/".join(parents[:depth])
            if self.changes.get(parent) is not None:
                return True
            on_disk = self.root / parent
            if on_disk.is_symlink():
                raise _not_a_file(path, f"below the symbolic link {parent}")
            if on_disk.is_file() and parent not in self.changes:
                return True
        return False

    def write(self) -> None:
        """Put the changes on disk, whole: where one cannot be written, every file stays as it was."""
        write_files(
            self.root,
            removed=[path for path, entry in self.changes.items() if entry is None],
            files={
                path: (0o755 if entry.mode == EXECUTABLE else 0o644, entry.content)
                for path, entry in self.changes.items()
                if entry is not None
            },
        )
        self.changes.clear()

    def files(self) -> Iterator[tuple[str, int, str]]:
        """Give (path, mode, sha256 of the content) of every file and link, sorted by path."""
        listed = dict.fromkeys(_walk(self.root)) | self.changes
        for path in sorted(listed):
            target = self.root / path
            entry = listed[path]
            if path in self.changes and entry is None:
                continue
            if path not in self.changes and target.is_symlink():
                yield path, LINK, _sha256(os.fsencode(target.readlink()))
                continue
            known = entry or self.read(path)
            assert known is not None, f"{path} vanished from {self.root} while it was read"
            yield path, known.mode, _sha256(known.content)


def tree_hash(tree: Tree) -> str:
    """Give the sha256 over sorted (path, mode, sha256 of content)."""
    whole = hashlib.sha256()
    for path, mode, digest in tree.files():
        whole.update(f"{mode:06o} {digest} ".encode() + os.fsencode(path) + b"\0")
    return whole.hexdigest()


def blob_id(content: bytes) -> str:
    """Give git's hash of a file, as the index line of a diff abbreviates it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_SOURCE]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in files + links:
            yield os.path.relpath(Path(folder, name), root)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _not_a_file(path: str, what: str) -> PatchError:
    return PatchError(
        found=f"{path} in the tree is {what}",
        expected="regular files; links are not followed",
        remedy="take the change to this path out of the patch",
    )
