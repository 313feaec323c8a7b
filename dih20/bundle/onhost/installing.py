"""Install a bundle below one folder, step by step; a second run skips what stands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.bundle.onhost import environment, facts, nccl, reading, vendor
from dih20.bundle.onhost.facts import HostFacts
from dih20.bundle.onhost.layout import Layout
from dih20.bundle.onhost.saying import say, step


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An installed bundle: this host's facts and the environment to run in."""

    facts: HostFacts
    environment: Mapping[str, str]


def verify(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Look at parts and host, and say everything that is wrong with either."""
    with step(f"parts ({len(manifest['parts'])})"):
        reading.check_parts(folder, dict(manifest))
    found = facts.gather(folder)
    compiling = vendor.must_build(manifest, found)
    facts.require(facts.judge(found, manifest, compiling=bool(compiling), unpacked=False))
    say(_summary(found, compiling))
    return 0


def install(folder: Path, manifest: dict[str, Any], layout: Layout, *, jobs: int) -> Installed:
    """Give the installed bundle; raises before anything is changed when the host cannot run it."""
    identity = manifest["identity"]
    standing = layout.mark.is_file() and layout.require() == identity
    unpacked = standing and layout.is_done("unpack", identity)
    found = facts.gather(layout.root)
    compiling = [
        name
        for name in vendor.must_build(manifest, found)
        if not (standing and layout.is_done(f"vendor {name}", vendor.key_of(manifest, name, found)))
    ]
    facts.require(facts.judge(found, manifest, compiling=bool(compiling), unpacked=unpacked))
    say(_summary(found, compiling))
    if not unpacked:
        with step(f"parts ({len(manifest['parts'])})"):
            reading.check_parts(folder, manifest)
    layout.claim(identity)
    with layout.alone():
        _unpack(folder, manifest, layout)
        for build in manifest["builds"]:
            _vendor(layout, manifest, build, found, jobs)
        whole = environment.whole(layout, found.cuda_home)
        own = environment.variables(layout, found.cuda_home)
        environment.write_script(layout, own)
        with step("NCCL") as notes:
            mapped = nccl.check(layout, manifest, whole)
            notes.append(f"{mapped['version']}, the only one mapped{_thinned(mapped)}")
        _record(layout, manifest, found, mapped)
    return Installed(facts=found, environment=whole)


def _unpack(folder: Path, manifest: dict[str, Any], layout: Layout) -> None:
    identity = manifest["identity"]
    if layout.is_done("unpack", identity):
        say("= unpacked before")
        return
    with step(f"unpack into {layout.root}") as notes:
        for group in manifest["groups"]:
            shutil.rmtree(layout.root / group, ignore_errors=True)  # what a stopped run left
        notes.append(f"{reading.unpack(folder, manifest, layout.root)} files")
    layout.done("unpack", identity)


def _vendor(layout: Layout, manifest: dict[str, Any], build: dict[str, Any], found: HostFacts, jobs: int) -> None:  # fmt: skip
    name = build["name"]
    key = vendor.key_of(manifest, name, found)
    if layout.is_done(f"vendor {name}", key):
        say(f"= {name}  installed before")
        return
    with step(name) as notes:
        notes.append(vendor.install(layout, manifest, build, found, jobs))
    layout.done(f"vendor {name}", key)


def _record(layout: Layout, manifest: Mapping[str, Any], found: HostFacts, mapped: Mapping[str, Any]) -> None:  # fmt: skip
    """Leave what engine-check puts into its report."""
    kept = ("identity", "commit", "lock", "options", "sources")
    record = {name: manifest[name] for name in kept}
    record |= {"patched": {name: tree["identity"] for name, tree in manifest["patched"].items()}}
    record |= {"nccl": dict(mapped), "host": found.as_dict()}
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    (layout.own / "BUNDLE.json").write_text(text)


def _thinned(mapped: Mapping[str, Any]) -> str:
    return f", thinned to {mapped['thinned']['architecture']}" if mapped["thinned"] else ""


def _summary(found: HostFacts, compiling: list[str]) -> str:
    gpu = f"{found.gpus} x {found.gpu}" if found.gpus else "no GPU"
    build = f"; to build here: {', '.join(compiling)}" if compiling else ""
    return f"host: Python {found.python}, torch {found.torch}, nvcc {found.nvcc}, glibc {found.glibc}, {gpu}{build}"
