"""This machine: its card, the commit, and versions found beside those that the lock pins."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from dih20.engine_check.results import read_json
from dih20.engine_check.sources import source_hashes
from dih20.errors import UsageError
from dih20.paths import REPOSITORY

_PACKAGES = {
    "torch": ("torch",),
    "tilelang": ("tilelang",),
    "tile-kernels": ("tile-kernels",),
    "transformers": ("transformers",),
    "deepinfer": ("deepinfer",),
    "deep_gemm": ("deepinfer-gemm", "deepgemm", "deep-gemm", "deep_gemm"),
    "deep_ep": ("deepinfer-ep", "deep-ep", "deep_ep"),
}


HERE = "here.json"


def told(work: Path, tree: Path | None) -> dict[str, Any]:
    """Give what the parent found out for its workers; refuse other sources than it has hashed."""
    given = read_json(work / HERE)
    hashed = source_hashes(tree)
    if given is None or given.get("sources") != hashed:
        raise UsageError(
            found=f"{work / HERE} is missing, or of other sources than lie here now",
            expected="what this run of engine-check wrote when it started",
            remedy="change no sources while it runs; start it again",
        )
    return given


def facts(tree: Path | None = None) -> dict[str, Any]:
    """Give card, commit, versions and source hashes."""
    return {
        **_bundle(),
        "card": card(),
        "commit": commit(),
        "versions": {"found": found(), "pinned": pinned()},
        "sources": source_hashes(tree),
    }


def _bundle() -> dict[str, Any]:
    """Give what the bundle says of itself and of this host, where the sources came in one."""
    path = REPOSITORY / "BUNDLE.json"
    if not path.is_file():
        return {}
    return {"bundle": json.loads(path.read_text(encoding="utf-8"))}


@functools.cache
def card() -> str:
    """Give the first card's name as its driver gives it, "none" without one."""
    try:
        shown = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            check=False, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return "none"
    lines = shown.stdout.splitlines()
    return lines[0].strip() if shown.returncode == 0 and lines else "none"


def commit() -> str:
    """Give the commit of the sources here: DIH20_COMMIT, a file COMMIT beside them, or what git says.

    git's ends in -changed where files differ from it, as the bundle's does.
    """
    if given := os.environ.get("DIH20_COMMIT"):
        return given
    beside = REPOSITORY / "COMMIT"
    if beside.is_file():
        return beside.read_text(encoding="utf-8").strip()
    head = _git("rev-parse", "HEAD").strip()
    if not head:
        return "unknown"
    return f"{head}-changed" if _git("status", "--porcelain").strip() else head


def _git(*words: str) -> str:
    """Give what git says of this repository, "" where it is none or there is no git."""
    try:
        return subprocess.run(
            ["git", *words], cwd=REPOSITORY, check=False, capture_output=True, text=True
        ).stdout
    except FileNotFoundError:
        return ""


def found() -> dict[str, str]:
    """Give versions on this machine, "none" for what is not installed as a package."""
    versions = {"python": platform.python_version()}
    for name, distributions in _PACKAGES.items():
        versions[name] = next((v for d in distributions if (v := _version(d))), "none")
    versions["cuda"] = _cuda()
    return versions


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _cuda() -> str:
    try:
        import torch
    except ImportError:
        return "none"
    return str(torch.version.cuda or "none")


def pinned() -> dict[str, str]:
    """Give the lock's versions of the same things; {} where there is no lock."""
    path = Path(os.environ.get("DI_LOCK", REPOSITORY / "di.lock.yaml"))
    if not path.is_file():
        return {}
    import yaml

    lock = yaml.safe_load(path.read_text(encoding="utf-8"))
    versions = {name: str(entry["version"]) for name, entry in lock.get("sources", {}).items()}
    for base in lock.get("bases", {}).values():
        for key in ("torch", "python", "cuda"):
            if str(base.get(key, "none")) != "none":
                versions[key] = str(base[key])
    _collect(lock.get("requirements"), set(_PACKAGES), versions)
    return dict(sorted(versions.items()))


def _collect(value: Any, names: set[str], into: dict[str, str]) -> None:
    """Take every locked file of a package that we know, wherever it stands."""
    if isinstance(value, dict):
        if value.get("name") in names:
            into[str(value["name"])] = str(value.get("version"))
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            _collect(inner, names, into)
