"""What a checkout is: its version, which is never blank, and which of its submodules are empty."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

from dih20.errors import LockError
from dih20.paths import shown

_VERSION_FILES = (
    ("PKG-INFO", r"^Version: (\S+)"),
    ("pyproject.toml", r"^version\s*=\s*[\"']([^\"']+)[\"']"),
)


def git(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git in a folder and trust that folder alone, whoever owns it."""
    trust = ["-c", f"safe.directory={folder.resolve()}"]
    try:
        done = subprocess.run(
            ["git", *trust, "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as fault:
        raise LockError(
            found="no git on this machine",
            expected=f"git, to read the checkout {shown(folder)}",
            remedy="install git, then run the command again",
        ) from fault
    if check and done.returncode != 0:
        raise LockError(
            found=f"`git {' '.join(arguments)}` in {shown(folder)} exited {done.returncode}: {done.stderr.strip()[-300:]}",
            expected="a readable git checkout",
            remedy="mend what git names, then run the command again",
        )
    return done


def tree_version(folder: Path) -> str:
    """Give a checkout's version: declared version, commit, and `.dirty` when files differ from it.

    A tree without git (an export, an sdist) has only its declared version; one without either is refused.
    """
    declared = _declared_version(folder)
    is_checkout = (folder / ".git").exists()
    if not is_checkout:
        if declared is None:
            raise LockError(
                found=f"cannot determine commit or version of {shown(folder)}: no .git, no PKG-INFO, no version in pyproject.toml",
                expected="a git checkout, or a tree that says its version",
                remedy="point path: in configs/images at a checkout, or use git: with a commit",
            )
        return declared
    head = git(folder, "rev-parse", "--verify", "HEAD", check=False)
    commit = head.stdout.strip()
    if head.returncode != 0 or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise LockError(
            found=f"cannot determine commit of {shown(folder)}: {head.stderr.strip()[-200:] or 'git gave none'}",
            expected="a checkout with a commit",
            remedy="commit or clone it properly, then run the command again",
        )
    dirty = (
        ".dirty"
        if git(folder, "status", "--porcelain", "--untracked-files=no").stdout.strip()
        else ""
    )
    return f"{declared or '0'}+g{commit[:12]}{dirty}"


def _declared_version(folder: Path) -> str | None:
    for name, pattern in _VERSION_FILES:
        path = folder / name
        if path.is_file() and (
            match := re.search(pattern, path.read_text(errors="replace"), flags=re.M)
        ):
            return match[1]
    return None


def empty_submodules(folder: Path) -> list[str]:
    """Give the paths that .gitmodules declares, at any depth, and that hold no file."""
    modules = folder / ".gitmodules"
    if not modules.is_file():
        return []
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string("\n".join(line.strip() for line in modules.read_text().splitlines()))
    empty = []
    for section in parser.sections():
        path = parser.get(section, "path", fallback="")
        if not path:
            continue
        inside = folder / path
        if not inside.is_dir() or not any(entry.name != ".git" for entry in inside.iterdir()):
            empty.append(path)
        else:
            empty += [f"{path}/{deeper}" for deeper in empty_submodules(inside)]
    return sorted(empty)


def check_submodules(folder: Path) -> None:
    """Raise LockError that names every empty submodule folder of a checkout."""
    if empty := empty_submodules(folder):
        raise LockError(
            found=f"{shown(folder)}: {len(empty)} submodule folders are empty: {', '.join(empty)}",
            expected="a checkout with its submodules, which hold the vendors' sources",
            remedy=f"run `git -C {folder} submodule update --init --recursive`, then the command again",
        )
