"""Vendor wheels that were built on one host, for another: wheels.json says what they fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dih20.bundle.onhost.facts import HostFacts
from dih20.bundle.onhost.folders import make_empty, sha256_of
from dih20.bundle.onhost.layout import Layout
from dih20.errors import HashMismatch, HostError, UsageError

LIST = "wheels.json"


def export(
    layout: Layout, manifest: Mapping[str, Any], facts: HostFacts, into: Path
) -> list[dict[str, Any]]:
    """Copy what was built here into a folder that is empty or new, with the list of it."""
    built = {
        build["name"]: wheel
        for build in manifest["builds"]
        for wheel in sorted((layout.root / "work" / "wheels" / build["name"]).glob("*.whl"))
        if layout.is_done(f"vendor {build['name']}", key_when_built(manifest, facts))
    }
    if not built:
        raise HostError(
            found=f"no wheel was built in {layout.root} for torch {facts.torch}",
            expected="a package that no wheel of the bundle fits",
            remedy="nothing to do: the bundle's own wheels are used here",
        )
    make_empty(into)
    rows = []
    for name, wheel in sorted(built.items()):
        shutil.copyfile(wheel, into / wheel.name)
        rows.append(
            {
                "name": name,
                "file": wheel.name,
                "sha256": sha256_of(wheel),
                "patched": manifest["patched"][name]["identity"],
                "torch": facts.torch,
                "glibc": facts.glibc,  # it asks for no newer one than it was built with
            }
        )
    (into / LIST).write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    return rows


def key_when_built(manifest: Mapping[str, Any], facts: HostFacts) -> str:
    """Give what a package built here depends on."""
    made = f"built with g++ {facts.gcc}, nvcc {facts.nvcc}"
    return f"{manifest['identity']} {facts.python} {facts.torch} {made}"


def read(folder: Path, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the rows of exported wheels, as the manifest has its own; each file is hashed."""
    try:
        rows: list[dict[str, Any]] = json.loads((folder / LIST).read_text())
        names = [(row["name"], row["file"], row["sha256"], row["patched"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise UsageError(
            found=f"{folder / LIST} cannot be read: {fault!r}",
            expected="a folder that `run.sh wheels export` wrote",
            remedy="correct --wheels",
        ) from fault
    for name, file, sha256, patched in names:
        path = folder / file
        if not path.is_file() or sha256_of(path) != sha256:
            raise HashMismatch(
                found=f"{path} is {'damaged' if path.is_file() else 'missing'}",
                expected=f"sha256 {sha256[:12]}..., as {LIST} says",
                remedy="copy it again; nothing was installed",
            )
        wanted = manifest["patched"].get(name, {}).get("identity")
        if patched != wanted:
            raise HostError(
                found=f"{path} was built from the tree {patched[:12]}",
                expected=f"{str(wanted)[:12]}, the tree of this bundle",
                remedy="leave out --wheels; it is then built here",
            )
    return [{**row, "wheel": str(folder / row["file"])} for row in rows]
