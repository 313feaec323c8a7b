"""Compare pins with what registries, package indexes and apt mirrors serve now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dih20.config.mirrors import Mirrors
from dih20.console import Console
from dih20.errors import FetchError, PinMoved, ToolError, Unresolved
from dih20.index.session import open_session
from dih20.index.shelf import Indexes, open_indexes
from dih20.lock.apt_root import AptRoot
from dih20.lock.base_pins import AptRoots
from dih20.lock.files import UNRESOLVED, LockedFile
from dih20.lock.model import Lock
from dih20.lock.newer_debs import newer_debs
from dih20.lock.registry import check_digest


def check_bases(ui: Console, lock: Lock, mirrors: Mirrors) -> None:
    """Raise PinMoved or FetchError when a registry base's tag moved or its digest is gone."""
    for name, base in sorted(lock.bases.items()):
        if base.image is None:
            continue
        with ui.step("ask", f"what {base.image} is now") as step:
            if not base.is_resolved:
                step.status, step.note = "not run", "its digest was never resolved"
                continue
            try:
                check_digest(base.image, base.digest, open_session(mirrors))
            except Unresolved as fault:
                step.status, step.note = "not run", fault.found
                ui.warn(f"base {name} was not compared: {fault.found}")


def check_index_files(ui: Console, lock: Lock, mirrors: Mirrors, sections: tuple[str, ...]) -> None:
    """Raise when an index lists a locked file with another hash, or none has it any more."""
    files = list(_index_files(lock, sections))
    if not files:
        return
    indexes = open_indexes(mirrors)
    with ui.step("ask", f"the indexes about {len(files)} files") as step:
        faults = [fault for file in files for fault in _moved(file, indexes)]
        if faults:
            kind = PinMoved if any(isinstance(f, PinMoved) for f in faults) else FetchError
            raise kind(
                found="\n  ".join(f.found for f in faults),
                expected=f"the files in di.lock.yaml, at {indexes.shown} (from {indexes.source})",
                remedy="name an index that has them in configs/mirrors.yaml, or accept what is served: `./inv lock --upgrade NAME,...`",
            )
        step.note = f"{indexes.shown}, from {indexes.source}"


def _index_files(lock: Lock, sections: tuple[str, ...]) -> Iterator[LockedFile]:
    groups: list[Any] = []
    if "wheels" in sections:
        wheels = lock.wheels
        groups += [
            wheels.headers,
            wheels.toolkit,
            wheels.inspector,
            wheels.nccl,
            wheels.nccl_for_tests,
        ]
        groups += [
            g
            for by_tag in (wheels.build, wheels.torch)
            if isinstance(by_tag, dict)
            for g in by_tag.values()
        ]
    if "requirements" in sections and isinstance(lock.python, dict):
        groups += lock.python.values()
    if "sources" in sections and isinstance(lock.upstream, dict):
        groups.append(lock.sources())
    if "ci" in sections and lock.ci != UNRESOLVED:
        groups.append(lock.ci.wheels)
    seen = {file.sha256: file for group in groups if group != UNRESOLVED for file in group}
    yield from seen.values()


def _moved(file: LockedFile, indexes: Indexes) -> Iterator[ToolError]:
    listed = [f for f in indexes.files(file.name) if f.filename == file.filename and f.sha256]
    parts: dict[str, Any] = {"expected": "", "remedy": ""}
    if not listed:
        yield FetchError(found=f"{file.filename} is at none of the indexes", **parts)
    for entry in listed:
        if entry.sha256 != file.sha256:
            yield PinMoved(
                found=f"{file.filename}: lock says {file.sha256}, index {entry.index} now {entry.sha256}",
                **parts,
            )


def check_debs(ui: Console, lock: Lock, mirrors: Mirrors, sections: tuple[str, ...]) -> None:
    """Raise PinMoved when a mirror has other versions: it drops the locked ones sooner or later."""
    with AptRoots(mirrors) as roots:
        for name, base in sorted(lock.bases.items()):
            debs = list(base.packages) if "base" in sections else []
            closures = lock.apt.items() if "apt" in sections else ()
            for key, files in closures:  # of the base itself, and of each variant on it
                debs += [] if files == UNRESOLVED or key.partition("+")[0] != name else files
            if "ci" in sections and name == "stand-in" and lock.ci != UNRESOLVED:
                debs += lock.ci.debs if lock.ci.base is None else ()
            if not debs:
                continue
            with ui.step("ask", f"the mirror of {base.suite} about {len(debs)} packages") as step:
                apt = roots.root(base.suite, base.architecture)
                moved = moved_debs(debs, apt)
                if moved:
                    raise PinMoved(
                        found=f"{len(moved)} packages of {base.suite} moved: "
                        + "; ".join(moved[:12]),
                        expected="the versions in di.lock.yaml; the mirror drops them when newer ones come",
                        remedy=f"run `{newer_debs(name)}`, and look at what it changes",
                    )
                step.note = apt.shown


def moved_debs(debs: list[LockedFile], apt: AptRoot) -> list[str]:
    """Give "name: lock says A, mirror now B" for each package whose version or hash differs."""
    now = {stanza["Package"]: stanza for stanza in apt.stanzas([deb.name for deb in debs])}
    moved = []
    for deb in debs:
        there = now.get(deb.name)
        if there is None:
            moved.append(f"{deb.name}: lock says {deb.version}, mirror has none")
        elif (there["Version"], there["SHA256"]) != (deb.version, deb.sha256):
            same = there["Version"] == deb.version
            moved.append(
                f"{deb.name}: lock says {deb.sha256 if same else deb.version}, "
                f"mirror now {there['SHA256'] if same else there['Version']}"
            )
    return moved
