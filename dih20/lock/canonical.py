"""The lock's one written form: fixed order, one line a file, a header that says who writes it.

What can be told from other keys is not written: a deb's file name and suite, the kind of a file,
the name of a base or source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dih20.lock.files import OWN, UNRESOLVED, Base, CiImage, LockedFile, LockedSource

if TYPE_CHECKING:
    from dih20.lock.model import Lock

HEADER = """\
# Every input of the images and wheels: names, versions, file names, sha256. Never an address: `./inv fetch`
# finds the files through the package index and apt mirrors in force (configs/mirrors.yaml).
# Written by `./inv lock` from configs/images/{image}.yaml, and by nothing else; do not edit it by hand.
# `unresolved` is what could not be asked for yet; the command that needs it says how to resolve it.
"""


class _Flow(dict[str, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _Flow,
    lambda dumper, data: dumper.represent_mapping(
        "tag:yaml.org,2002:map", data.items(), flow_style=True
    ),
)


def render(lock: Lock) -> str:
    """Give the lock file's text."""
    body = yaml.dump(
        to_plain(lock),
        Dumper=_Dumper,
        sort_keys=False,
        width=10**6,
        allow_unicode=True,
        default_flow_style=False,
    )
    return HEADER.format(image=lock.image) + body


def canonical_bytes(lock: Lock) -> bytes:
    """Give what the identity is taken over: the same values in the same order, as JSON.

    The CI image's part is left out: nothing of it goes into the di-h20 image or a wheel.
    """
    plain = to_plain(lock)
    del plain["ci"]
    plain["wants"] = {part: want for part, want in plain["wants"].items() if part != "ci"}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def write(lock: Lock, path: Path) -> None:
    """Replace the lock file in one step, so that a reader never sees half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(render(lock), encoding="utf-8")
    fresh.replace(path)


def to_plain(lock: Lock) -> dict[str, Any]:
    """Give the lock as plain values in canonical order."""
    wheels = lock.wheels
    return {
        "format": lock.format,
        "image": lock.image,
        "wants": dict(sorted(lock.wants.items())),
        "bases": {name: _base(base) for name, base in sorted(lock.bases.items())},
        "apt": {name: _files(files) for name, files in sorted(lock.apt.items())},
        "wheels": {
            "headers": _files(wheels.headers),
            "toolkit": _files(wheels.toolkit),
            "inspector": _files(wheels.inspector),
            "nccl": _files(wheels.nccl),
            "nccl_for_tests": _files(wheels.nccl_for_tests),
            "build": _groups(wheels.build),
            "torch": _groups(wheels.torch),
        },
        "requirements": _groups(lock.python),
        "sources": lock.upstream
        if isinstance(lock.upstream, str)
        else {name: _source(source) for name, source in sorted(lock.upstream.items())},
        "ci": lock.ci if isinstance(lock.ci, str) else _ci(lock.ci),
    }


def _files(files: Any) -> Any:
    return files if files == UNRESOLVED else [_file(f) for f in sorted(files, key=lambda f: f.name)]


def _groups(groups: Any) -> Any:
    if groups == UNRESOLVED:
        return groups
    return {tag: _files(files) for tag, files in sorted(groups.items())}


def _file(file: LockedFile) -> _Flow:
    where = {"path": file.path} if file.kind == "deb" else {"filename": file.filename}
    return _Flow(
        name=file.name,
        version=file.version,
        **where,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
    )


def _base(base: Base) -> dict[str, Any]:
    plain: dict[str, Any] = {} if base.image is None else {"image": base.image}
    for key in ("suite", "architecture", "digest", "python_tag", "torch", "glibc"):
        plain[key] = getattr(base, key)
    if base.is_stand_in:
        plain["packages"] = _files(base.packages)
    return plain


def _source(source: LockedSource) -> _Flow:
    plain = _Flow(kind=source.kind, version=source.version)
    if source.file:
        plain |= {k: v for k, v in _file(source.file).items() if k not in ("name", "version")}
        plain["project"] = source.file.name
    if source.commit:
        plain["commit"] = source.commit
    return plain


def _ci(ci: CiImage) -> dict[str, Any]:
    own = {} if ci.base is None else {"base": _base(ci.base)}
    return {
        **own,
        "base_digest": ci.base_digest,
        "debs": _files(ci.debs),
        "wheels": _files(ci.wheels),
    }


def from_plain(plain: dict[str, Any]) -> dict[str, Any]:
    """Give the values of a lock file with what the canonical form leaves out put back."""
    bases = {name: dict(base, name=name) for name, base in plain.get("bases", {}).items()}
    for base in bases.values():
        base["packages"] = [_deb(f, base["suite"]) for f in base.get("packages", [])]
    apt = plain.get("apt", {})
    return {
        **plain,
        "bases": bases,
        "apt": {
            # a key is a base, or BASE+VARIANT
            n: f if f == UNRESOLVED else [_deb(d, bases[n.partition("+")[0]]["suite"]) for d in f]
            for n, f in apt.items()
        },
        "wheels": {key: _each(files, _wheel) for key, files in plain.get("wheels", {}).items()},
        "requirements": _each(plain.get("requirements", UNRESOLVED), _wheel),
        "sources": _each_source(plain.get("sources", UNRESOLVED)),
        "ci": _each_ci(plain.get("ci", UNRESOLVED), bases),
    }


def _each(files: Any, build: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if files == UNRESOLVED:
        return files
    if isinstance(files, dict):
        return {tag: [build(f) for f in group] for tag, group in files.items()}
    return [build(f) for f in files]


def _wheel(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain, "kind": "wheel"}


def _deb(plain: dict[str, Any], suite: str) -> dict[str, Any]:
    return {**plain, "kind": "deb", "filename": plain["path"].rsplit("/", 1)[-1], "suite": suite}


def _each_ci(ci: Any, bases: dict[str, dict[str, Any]]) -> Any:
    if ci == UNRESOLVED:
        return ci
    own = {} if "base" not in ci else {"base": dict(ci["base"], name=OWN)}
    suite = own["base"]["suite"] if own else bases["stand-in"]["suite"]
    debs = [_deb(file, suite) for file in ci["debs"]]
    return {**ci, **own, "debs": debs, "wheels": [_wheel(file) for file in ci["wheels"]]}


def _each_source(sources: Any) -> Any:
    if sources == UNRESOLVED:
        return sources
    full = {}
    for name, plain in sources.items():
        source = {"name": name, "kind": plain["kind"], "version": plain["version"]}
        if "filename" in plain:
            file = {k: plain[k] for k in ("version", "filename", "size_bytes", "sha256")}
            source["file"] = {**file, "name": plain["project"], "kind": "sdist"}
        if "commit" in plain:
            source["commit"] = plain["commit"]
        full[name] = source
    return full
