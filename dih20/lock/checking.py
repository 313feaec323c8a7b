"""`inv lock --check`: the lock answers the configuration, and what it pins is still what is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dih20.config import load_image, load_mirrors
from dih20.config.image import ImageConfig
from dih20.console import Console
from dih20.errors import LockError, PinMoved
from dih20.lock.canonical import render
from dih20.lock.files import UNRESOLVED
from dih20.lock.model import Lock
from dih20.lock.served import check_bases, check_debs, check_index_files
from dih20.lock.source_pins import source_folder
from dih20.lock.tree_version import tree_version
from dih20.lock.wants import SECTIONS, chosen, parts_of, wanted_by
from dih20.paths import lock_file, shown


def check_lock(ui: Console, *, only: str, image_name: str, offline: bool) -> dict[str, Any]:
    """Raise what is stale or has moved; a pin that never was resolved is said, not an error."""
    lock, image, mirrors = Lock.load(), load_image(image_name), load_mirrors()
    sections = chosen(only, SECTIONS, "--only")
    with ui.step("check", f"{shown(lock_file())} against configs/images/{image.name}.yaml") as step:
        check_written_form(lock)
        check_wants(lock, image, sections)
        step.note = ", ".join(sections)
    if not offline:
        if "base" in sections:
            check_bases(ui, lock, mirrors)
        check_index_files(ui, lock, mirrors, sections)
        check_debs(ui, lock, mirrors, sections)
        if "sources" in sections:
            _check_paths(lock, image)
    unresolved = list(unresolved_parts(lock))
    for part in unresolved:
        ui.line(f"  unresolved: {part}", style="dim")
    return {"identity": lock.identity, "sections": list(sections), "unresolved": unresolved}


def check_written_form(lock: Lock) -> None:
    """Raise when the file is not, byte for byte, what `inv lock` would write for its content."""
    if lock_file().read_text(encoding="utf-8") != render(lock):
        raise LockError(
            found=f"{shown(lock_file())} is not in canonical form: it was edited by hand or merged",
            expected="the form that `./inv lock` writes",
            remedy="run `./inv lock`, and look at what it changes",
        )


def check_wants(lock: Lock, image: ImageConfig, sections: tuple[str, ...]) -> None:
    """Raise when a section answers another configuration than the one in force."""
    parts = {part: name for name in sections for part in parts_of(name)}
    stale = [part for part in parts if lock.wants.get(part) != wanted_by(part, image)]
    if "ci" in parts and "ci" not in stale and lock.is_ci_on_another_base:
        stale.append("ci")
    if stale:
        raise LockError(
            found=f"stale: {', '.join(stale)}",
            expected=f"pins for what configs/images/{image.name}.yaml wants now",
            remedy=f"run `./inv lock --only {','.join(dict.fromkeys(parts[part] for part in stale))}`",
        )


def unresolved_parts(lock: Lock) -> Iterator[str]:
    """Give what the lock leaves open, each with the command that resolves it."""
    for name, base in sorted(lock.bases.items()):
        if not base.is_resolved:
            yield f"digest of base {name}: `./inv lock --only base` where its registry is reachable"
    for name, files in sorted(lock.apt.items()):
        if files == UNRESOLVED:
            yield f"apt packages on base {name}: `./inv lock --only apt` where an engine holds the base"


def _check_paths(lock: Lock, image: ImageConfig) -> None:
    for name, source in image.sources.items():
        if source.path is None:
            continue
        now, before = tree_version(source_folder(source.path)), lock.source(name).version
        if now != before:
            raise PinMoved(
                found=f"source {name} at {source.path}: lock says {before}, checkout now {now}",
                expected="the commit in di.lock.yaml",
                remedy="check that commit out again, or run `./inv lock --upgrade --only sources`",
            )
