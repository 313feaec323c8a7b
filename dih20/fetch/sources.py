"""Unpack an upstream source: an sdist without running it, a git tree, or a copy of a checkout."""

from __future__ import annotations

import shutil
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from dih20.config import load_image
from dih20.errors import FetchError
from dih20.fetch.cache import cached
from dih20.fetch.git_trees import git_tree
from dih20.lock.model import Lock
from dih20.lock.source_pins import source_folder
from dih20.lock.tree_version import check_submodules
from dih20.paths import shown

_NOT_COPIED = shutil.ignore_patterns(
    ".git", "__pycache__", "*.pyc", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv"
)


def unpack_source(name: str, lock: Lock, into: Path) -> Path:
    """Give the unpacked tree of a source: into/NAME, which must not exist before.

    Example:
        tree = unpack_source("deepinfer", lock, Path(scratch))
    """
    source = lock.source(name)
    target = into / name
    if target.exists():
        raise FetchError(
            found=f"{shown(target)} exists",
            expected="no such folder: a source is unpacked whole or not at all",
            remedy="remove it, or unpack elsewhere",
        )
    into.mkdir(parents=True, exist_ok=True)
    fresh = into / f".{name}.part"
    shutil.rmtree(fresh, ignore_errors=True)
    if source.file:
        unpack_archive(cached(source.file), fresh)
    else:
        tree = git_tree(source) if source.kind == "git" else _own_checkout(name, lock)
        check_submodules(tree)
        shutil.copytree(tree, fresh, symlinks=True, ignore=_NOT_COPIED)
    fresh.rename(target)
    return target


def _own_checkout(name: str, lock: Lock) -> Path:
    wanted = load_image(lock.image).sources.get(name)
    if wanted is None or wanted.path is None:
        raise FetchError(
            found=f"the lock has source {name} from a path, configs/images/{lock.image}.yaml has no path for it",
            expected="both the same",
            remedy="run `./inv lock --only sources`",
        )
    folder = source_folder(wanted.path)
    if not folder.is_dir():
        raise FetchError(
            found=f"no folder {wanted.path}",
            expected=f"the checkout that sources: {name}: path: in configs/images/{lock.image}.yaml names",
            remedy="correct path: there",
        )
    return folder


def unpack_archive(archive: Path, target: Path) -> None:
    """Unpack a tar with one top folder into `target`; a member that would leave it is refused."""
    with tarfile.open(archive, "r:*") as tar:
        members = tar.getmembers()
        tops = {PurePosixPath(m.name).parts[0] for m in members if PurePosixPath(m.name).parts}
        for member in members:
            _refuse_unsafe(member, archive)
        if len(tops) != 1:
            raise _bad(archive, f"it has {len(tops)} top folders: {', '.join(sorted(tops)[:5])}")
        target.mkdir(parents=True)
        for member in members:
            member.mode = (member.mode & 0o755) | (
                stat.S_IRWXU if member.isdir() else stat.S_IRUSR | stat.S_IWUSR
            )
            member.uid = member.gid = 0
            member.uname = member.gname = ""
        # python 3.11.4 and newer have a second check of their own
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(target, members=members, **options)
    (top,) = tops
    inner = target / top
    holding = target.with_name(f"{target.name}.top")
    inner.rename(holding)
    target.rmdir()
    holding.rename(target)


def _refuse_unsafe(member: tarfile.TarInfo, archive: Path) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise _bad(archive, f"member {member.name!r} leaves the folder")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise _bad(archive, f"member {member.name!r} is a device or pipe")
    if member.issym() or member.islnk():
        base = path.parent if member.issym() else PurePosixPath()
        depth = 0
        for part in (base / member.linkname).parts:
            depth += -1 if part == ".." else 1
            if depth < 1 or PurePosixPath(member.linkname).is_absolute():
                raise _bad(
                    archive, f"link {member.name!r} -> {member.linkname!r} leaves the folder"
                )


def _bad(archive: Path, why: str) -> FetchError:
    return FetchError(
        found=f"{archive.name} is not unpacked: {why}",
        expected="a source archive with one top folder and nothing outside it",
        remedy="look at the archive; if it is upstream's own, report it there and use git: or path: instead",
    )
