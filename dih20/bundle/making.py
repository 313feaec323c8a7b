"""Make the bundle: gather, write parts beside their final place, then put them there in one step."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20.bundle import locked, nccl, own, vendor
from dih20.bundle.entries import Entry, in_order
from dih20.bundle.manifest import MANIFEST, is_bundle, manifest_of
from dih20.bundle.parts import BlockCompressor, Splitter, forget_old_blocks, write_archive
from dih20.bundle.request import Request
from dih20.bundle.thin_site import thin_site
from dih20.bundle.tools import copy_tools
from dih20.config import load_mirrors
from dih20.console import Console
from dih20.errors import UsageError
from dih20.fetch.cache import is_cached
from dih20.fetch.downloads import distinct, fetch_files
from dih20.lock import Lock, LockedFile
from dih20.patches.prepare import PatchedTree
from dih20.paths import cache_dir, shown
from dih20.plan import Action, Plan


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The locked files of a bundle."""

    packages: list[LockedFile]
    build_tools: list[LockedFile]
    header_wheels: list[LockedFile]
    header_debs: list[LockedFile]
    nccl: list[LockedFile]

    @classmethod
    def of(cls, lock: Lock, request: Request) -> Inputs:
        return cls(
            packages=locked.packages(lock, request),
            build_tools=locked.build_tools(lock, request),
            header_wheels=locked.header_wheels(lock, request),
            header_debs=locked.header_debs(lock, request),
            nccl=[] if "nccl" in request.without else [lock.nccl()],
        )

    def files(self) -> list[LockedFile]:
        groups = (self.packages, self.build_tools, self.header_wheels, self.header_debs, self.nccl)
        return distinct([file for group in groups for file in group])


def make(ui: Console, request: Request, *, only_plan: bool) -> dict[str, Any]:
    """Write the bundle into its folder and give its manifest's main values."""
    lock = Lock.load()
    inputs = Inputs.of(lock, request)
    prebuilt = vendor.wheels(lock, request)
    _refuse_foreign(request.out)
    ui.plan(plan := make_plan(request, inputs, prebuilt))
    if only_plan:
        return plan.as_dict()
    fetch_files(ui, inputs.files(), load_mirrors(), what="files of the bundle")
    trees = vendor.trees(ui, lock)
    thinning: dict[str, Any] = {}
    ours = own.snapshot(request, trees["deepinfer"].path)
    with ui.step("gather", "files of the bundle") as step:
        entries = in_order([*_entries(request, inputs, trees, prebuilt, thinning), *ours.entries])
        step.note = f"{len(entries)} files, {sum(e.size for e in entries) / 1e6:.0f} MB"
    request.out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{request.out.name}-", dir=request.out.parent))
    try:
        manifest = _write(ui, request, draft, entries)
        manifest |= manifest_of(lock, request, inputs.files(), trees, prebuilt, thinning, ours)
        manifest["tools"] = copy_tools(draft)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        draft.chmod(0o755)
        if request.out.exists():
            shutil.rmtree(request.out)
        draft.rename(request.out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    ui.line(f"on the host: sh {request.out.name}/run.sh --into FOLDER (docs/bundle.md)")
    return {
        "folder": shown(request.out),
        "identity": manifest["identity"],
        "parts": manifest["parts"],
        "size_bytes": manifest["whole"]["size_bytes"],
        "unpacked_bytes": manifest["unpacked_bytes"],
    }


def make_plan(request: Request, inputs: Inputs, prebuilt: list[dict[str, Any]]) -> Plan:
    """Say what would go in."""
    missing = [file for file in inputs.files() if not is_cached(file)]
    size = sum(file.size_bytes for file in missing)
    fetch = (
        f"{len(missing)} files ({size / 1e6:.1f} MB)" if missing else "nothing: all is in the cache"
    )
    whole = f"only device code of {request.thin_nccl}" if request.thin_nccl else "whole"
    nccl_text = f"NCCL {inputs.nccl[0].version}, {whole}" if inputs.nccl else "no NCCL"
    taken = ", ".join(f"{w['name']} (torch {w['torch']})" for w in prebuilt)
    return Plan(
        title=f"a bundle in {shown(request.out)}",
        actions=(
            Action(verb="fetch", target=fetch, needed=bool(missing)),
            Action(verb="patch", target=", ".join(vendor.NAMES)),
            Action(verb="pack", target=f"{len(inputs.packages)} packages, {nccl_text}"),
            Action(verb="pack", target=f"vendor wheels: {taken or 'none, the host builds them'}"),
            Action(verb="write", target=f"parts of at most {request.part_size} bytes"),
        ),
    )


def _entries(
    request: Request,
    inputs: Inputs,
    trees: dict[str, PatchedTree],
    prebuilt: list[dict[str, Any]],
    thinning: dict[str, Any],
) -> Iterator[Entry]:
    site = locked.site_entries(inputs.packages, "site")
    yield from thin_site(site) if request.thin_site else site
    yield from locked.site_entries(inputs.build_tools, "site-build")
    yield from locked.header_entries(inputs.header_wheels, inputs.header_debs)
    for wheel in inputs.nccl:
        if request.thin_nccl:
            found, done = nccl.thin_nccl_entries(wheel, request.thin_nccl)
            thinning |= done
            yield from found
        else:
            yield from nccl.nccl_entries(wheel)
    yield from vendor.source_entries(trees)
    yield from vendor.wheel_entries(prebuilt)


def _write(ui: Console, request: Request, folder: Path, entries: list[Entry]) -> dict[str, Any]:
    total = sum(entry.size for entry in entries)
    with ui.step("pack", f"{total / 1e6:.0f} MB") as step, ui.progress("pack", total) as advance:
        splitter = Splitter(folder, request.part_size)
        known = block_cache()
        compressor = BlockCompressor(splitter.write, request.level, known=known)
        groups = write_archive(entries, compressor, advance)
        compressor.close()
        whole = splitter.close()
        forget_old_blocks(known)
        step.note = f"{len(splitter.parts)} parts, {whole['size_bytes'] / 1e6:.1f} MB"
    return {
        "identity": whole["sha256"],
        "whole": whole,
        "parts": splitter.parts,
        "groups": groups,
        "unpacked_bytes": total,
    }


def block_cache() -> Path:
    """Give where compressed blocks are kept from bundle to bundle."""
    return cache_dir() / "bundle-blocks"


def _refuse_foreign(folder: Path) -> None:
    """Refuse to replace a folder that is not a bundle."""
    if folder.exists() and not is_bundle(folder):
        raise UsageError(
            found=f"{shown(folder)} is there and is no bundle",
            expected="no such folder, an empty one, or an earlier bundle, which is replaced",
            remedy="name another folder with --out",
        )
