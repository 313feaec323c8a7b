"""Fetch a git source at its commit into the cache: DI_CACHE/git/COMMIT, with its submodules."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dih20.config.image import ImageConfig
from dih20.console import Console
from dih20.errors import FetchError
from dih20.file_guard import only_holder
from dih20.index.session import without_password
from dih20.lock.files import LockedSource
from dih20.lock.model import Lock
from dih20.lock.source_pins import source_folder
from dih20.lock.tree_version import check_submodules, git
from dih20.paths import cache_dir
from dih20.plan import Action


def git_tree(source: LockedSource) -> Path:
    """Give the cached checkout of a git source; FetchError names `./inv fetch`."""
    assert source.commit, f"source {source.name} is not from git"
    folder = _place(source.commit)
    if not folder.is_dir():
        raise FetchError(
            found=f"source {source.name} at commit {source.commit[:12]} is not in the cache",
            expected="its checkout",
            remedy="run `./inv fetch --only sources`",
        )
    return folder


def git_actions(lock: Lock) -> list[Action]:
    """Give an action per git source; those in the cache are done already."""
    if isinstance(lock.upstream, str):
        return []
    return [
        Action(
            verb="clone",
            target=f"source {source.name} at {source.commit[:12]}",
            needed=not _place(source.commit).is_dir(),
        )
        for source in lock.upstream.values()
        if source.commit
    ]


def fetch_git_sources(ui: Console, lock: Lock, image: ImageConfig) -> None:
    """Clone each git source of the lock that the cache lacks."""
    for name in image.sources:
        source = lock.source(name)
        if source.kind == "git" and source.commit:
            with ui.step("fetch", f"source {name} at {source.commit[:12]}") as step:
                address = image.sources[name].git
                if address is None:
                    raise FetchError(
                        found=f"the lock has source {name} from git, configs/images/{image.name}.yaml has it from elsewhere",
                        expected="both the same",
                        remedy="run `./inv lock --only sources`",
                    )
                step.status = "hit" if _place(source.commit).is_dir() else "miss"
                _fetch(ui, address, source.commit)


def _place(commit: str) -> Path:
    return cache_dir() / "git" / commit


def _fetch(ui: Console, address: str, commit: str) -> None:
    place = _place(commit)
    with only_holder(place.parent / f".{commit}.guard", ui.line):
        if place.is_dir():
            return
        fresh = place.with_name(f".{commit}.part")
        shutil.rmtree(fresh, ignore_errors=True)
        local = source_folder(address)
        _git(
            "clone",
            "--quiet",
            "--no-checkout",
            str(local) if local.is_dir() else address,
            str(fresh),
        )
        _git("-C", str(fresh), "checkout", "--quiet", "--detach", commit)
        _git("-C", str(fresh), "submodule", "--quiet", "update", "--init", "--recursive")
        check_submodules(fresh)
        head = git(fresh, "rev-parse", "HEAD").stdout.strip()
        assert head == commit, f"git checked out {head} for {commit}"
        fresh.rename(place)


def _git(*arguments: str) -> None:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        shown = " ".join(without_password(a) if "://" in a else a for a in arguments)
        raise FetchError(
            found=f"`git {shown}` exited {done.returncode}: {done.stderr.strip()[-400:]}",
            expected="the commit that sources: in configs/images names, with its submodules",
            remedy="correct git: and commit: there, or use path: with a checkout of your own",
        )
