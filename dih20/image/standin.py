"""The stand-in base: a small Debian with python and a compiler, for machines that reach no registry.

    rootfs(ui, lock)            the root file system as a tar in the cache, made once per package list
    load(ui, client, lock)      the same as an image in an engine; the image id follows from the content

It is made of the locked packages, without network, and labelled `dih20.base=stand-in`, so that
nothing built on it can pass for the vLLM base.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dih20.console import Console
from dih20.errors import ImageError
from dih20.fetch import cached
from dih20.file_guard import only_holder
from dih20.image import debootstrap
from dih20.image.archive.load import load_chunks
from dih20.image.archive.partial import PartialFile
from dih20.image.archive.streams import HashingWriter
from dih20.image.local_mirror import make_mirror
from dih20.image.rootfs_tar import FIXED_MTIME, write_rootfs
from dih20.lock import Base, Lock
from dih20.lock.newer_debs import newer_debs
from dih20.paths import build_dir, cache_dir, shown

if TYPE_CHECKING:
    import docker

FORMAT = 3  # raise it when the way the tar is made changes, so that old ones are not taken
TAG = "dih20-stand-in"


@dataclass(frozen=True, kw_only=True)
class Rootfs:
    """A finished root file system: a tar (zstd) of the base. diff_id is the plain tar's hash."""

    path: Path
    diff_id: str
    raw_bytes: int
    base: Base

    @property
    def tag(self) -> str:
        return f"{TAG}:{key_of(self.base)}"


def rootfs(ui: Console, lock: Lock | None = None) -> Rootfs:
    """Give the tar of the locked base: from the cache, else by debootstrap (one to two minutes)."""
    base = (lock or Lock.load()).base("stand-in")
    folder = cache_dir() / "stand-in"
    with only_holder(folder / f"{key_of(base)}.guard", ui.line):
        with ui.step("make", f"stand-in base ({base.suite})") as step:
            if found := _cached(folder, base):
                step.status, step.note = (
                    "hit",
                    f"{len(base.packages)} packages, in {shown(found.path)}",
                )
                return found
            debootstrap.check_machine()
            made = _bootstrapped(ui, folder, base)
            step.status = "miss"
            step.note = f"{len(base.packages)} packages, {made.raw_bytes / 1e6:.0f} MB, in {shown(made.path)}"
            return made


def load(ui: Console, client: docker.DockerClient, lock: Lock | None = None) -> str:
    """Give the reference of the stand-in image in this engine, loading it when it is not there."""
    from docker.errors import ImageNotFound

    made = rootfs(ui, lock)
    with ui.step("load", made.tag) as step:
        try:
            if client.images.get(made.tag).attrs["RootFS"]["Layers"] == [made.diff_id]:
                step.status, step.note = "hit", "the engine holds it"
                return made.tag
        except ImageNotFound:
            pass
        load_chunks(client, _archive(made))
        layers = client.images.get(made.tag).attrs["RootFS"]["Layers"]
        if layers != [made.diff_id]:
            raise ImageError(
                found=f"the engine loaded {', '.join(layers)}",
                expected=f"the one layer {made.diff_id} of {shown(made.path)}",
                remedy=f"remove {shown(made.path)} and run the command again",
            )
        step.status, step.note = "miss", "the engine did not hold it"
    return made.tag


def key_of(base: Base) -> str:
    """Give the name of a base in the cache: over its locked packages and the way it is made."""
    text = f"{FORMAT} {base.suite} {base.architecture} {base.python_tag} {base.require_digest()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def image_config(made: Rootfs) -> bytes:
    """Give the image's configuration; the same tar gives the same bytes, so the same image id."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(FIXED_MTIME))
    labels = {
        "dih20.owner": "dih20",
        "dih20.base": "stand-in",
        "dih20.base-key": key_of(made.base),
        "dih20.python-tag": made.base.python_tag,
        "dih20.torch": "none",
    }
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    config: dict[str, Any] = {
        "architecture": made.base.architecture,
        "os": "linux",
        "created": created,
        "config": {"Env": [path], "Cmd": ["/bin/bash"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [made.diff_id]},
        "history": [{"created": created, "comment": f"debootstrap {made.base.suite}"}],
    }
    return json.dumps(config, sort_keys=True).encode()


def _bootstrapped(ui: Console, folder: Path, base: Base) -> Rootfs:
    import zstandard

    key = key_of(base)
    log = build_dir() / "logs" / f"stand-in-{key}.log"
    target = folder / f"{key}.tar.zst"
    mirror = folder / f"{key}.mirror"
    shutil.rmtree(mirror, ignore_errors=True)
    try:
        make_mirror(
            base.packages, mirror, suite=base.suite, architecture=base.architecture, find=cached
        )
        with debootstrap.scratch_root(folder) as root:
            debootstrap.bootstrap(
                ui,
                suite=base.suite,
                architecture=base.architecture,
                packages=[package.name for package in base.packages],
                mirror=mirror,
                root=root,
                log=log,
            )
            _check_versions(base, debootstrap.installed_packages(root))
            ui.line("  compiling python's library and writing the tar ...", style="dim")
            debootstrap.compile_python(root)
            with PartialFile(target) as out:
                squeezed = zstandard.ZstdCompressor(level=3).stream_writer(out, closefd=False)
                with squeezed:
                    hashed = HashingWriter(cast(BinaryIO, squeezed))
                    write_rootfs(root, cast(BinaryIO, hashed))
    finally:
        shutil.rmtree(mirror, ignore_errors=True)
    facts = {
        "base": base.digest,
        "diff_id": f"sha256:{hashed.sha256}",
        "raw_bytes": hashed.size_bytes,
        "size_bytes": target.stat().st_size,
    }
    with PartialFile(folder / f"{key}.json") as out:
        out.write(json.dumps(facts, indent=1).encode())
    found = _cached(folder, base)
    assert found is not None, f"{target} was just written"
    return found


def _check_versions(base: Base, installed: dict[str, str]) -> None:
    locked = {package.name: package.version for package in base.packages}
    if installed != locked:
        differing = sorted(
            n for n in installed.keys() | locked.keys() if installed.get(n) != locked.get(n)
        )
        raise ImageError(
            found="debootstrap installed other packages than the lock names: "
            + ", ".join(f"{name} {installed.get(name, 'missing')}" for name in differing[:8]),
            expected=", ".join(f"{name} {locked.get(name, 'none')}" for name in differing[:8]),
            remedy=f"run `{newer_debs(base.name)}`, then the command again",
        )


def _cached(folder: Path, base: Base) -> Rootfs | None:
    path = folder / f"{key_of(base)}.tar.zst"
    try:
        facts = json.loads((folder / f"{key_of(base)}.json").read_text())
        if path.stat().st_size != facts["size_bytes"]:
            return None
        return Rootfs(path=path, diff_id=facts["diff_id"], raw_bytes=facts["raw_bytes"], base=base)
    except (OSError, ValueError, KeyError):
        return None  # never made, or broken off: it is made again


def _archive(made: Rootfs) -> Iterator[bytes]:
    """Give the image as the stream that `docker load` takes, the tar unpacked on the way."""
    import zstandard

    config = image_config(made)
    name = hashlib.sha256(config).hexdigest() + ".json"
    layer = made.diff_id.removeprefix("sha256:") + "/layer.tar"
    manifest = json.dumps([{"Config": name, "RepoTags": [made.tag], "Layers": [layer]}]).encode()
    for member, content in ((name, config), ("manifest.json", manifest)):
        yield _header(member, len(content)) + content + b"\0" * (-len(content) % tarfile.BLOCKSIZE)
    yield _header(layer, made.raw_bytes)
    with made.path.open("rb") as packed:
        reader = zstandard.ZstdDecompressor().stream_reader(packed)
        while block := cast(BinaryIO, reader).read(1 << 20):
            yield block
    yield b"\0" * (-made.raw_bytes % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)


def _header(name: str, size_bytes: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size_bytes
    return entry.tobuf(tarfile.USTAR_FORMAT)
