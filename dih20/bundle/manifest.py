"""The manifest beside the parts: what is in the bundle, made from what, with which options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dih20.bundle import nccl, own, vendor
from dih20.bundle.locked import glibc_for, target_python
from dih20.bundle.request import Request
from dih20.fetch import cached
from dih20.image.headers import header_facts
from dih20.lock import Lock, LockedFile
from dih20.patches.prepare import PatchedTree

MANIFEST = "manifest.json"
FORMAT = 1
TORCH_AT_LEAST = (
    "2.11"  # upstream's code and h20_ops ask for no newer one, and were not run on an older
)


def manifest_of(
    lock: Lock,
    request: Request,
    files: list[LockedFile],
    trees: dict[str, PatchedTree],
    prebuilt: list[dict[str, Any]],
    thinning: dict[str, Any],
    ours: own.Snapshot,
) -> dict[str, Any]:
    """Give everything but parts and groups; no clock and no path of this machine is in it."""
    return {
        "format": FORMAT,
        "options": request.options(),
        "commit": ours.commit,
        "lock": lock.identity,
        "target": {
            "python_tag": target_python(lock),
            "glibc": glibc_for(files),
            "torch_at_least": TORCH_AT_LEAST,
            "cuda": header_facts(lock)["nvcc"],
        },
        "files": [
            {"name": f.name, "version": f.version, "filename": f.filename, "sha256": f.sha256}
            for f in sorted(files, key=lambda f: (f.name, f.filename))
        ],
        "patched": {
            name: {"version": lock.source(name).version, "identity": tree.identity, "patches": list(tree.patches)}
            for name, tree in trees.items()
        },
        "sources": ours.sources,
        "builds": vendor.builds(),
        "vendor_wheels": [{k: v for k, v in row.items() if k != "path"} for row in prebuilt],
        "nccl": _nccl(lock, request, thinning),
    }  # fmt: skip


def _nccl(lock: Lock, request: Request, thinning: dict[str, Any]) -> dict[str, Any] | None:
    if "nccl" in request.without:
        return None
    wheel = lock.nccl()
    whole = thinning.get("whole_sha256") or nccl.library_hash(cached(wheel))
    done = {key: value for key, value in thinning.items() if key != "whole_sha256"}
    return {"version": wheel.version, "whole_sha256": whole, "thinned": done or None}


def is_bundle(folder: Path) -> bool:
    """Say whether a folder is empty or holds a bundle."""
    if not folder.is_dir():
        return False
    path = folder / MANIFEST
    if not path.is_file():
        return not any(folder.iterdir())
    try:
        return bool(json.loads(path.read_text())["parts"])
    except (ValueError, KeyError, TypeError):
        return False
