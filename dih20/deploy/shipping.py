"""Put on a host what it lacks: image layers, wheels, the engine tree; each verified there."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from dih20.console import Console
from dih20.deploy.container import digest_of
from dih20.deploy.packed import PackedFile
from dih20.deploy.plan import image_delta, load_by
from dih20.deploy.wanted import Wanted, WantedTree
from dih20.errors import DeployError
from dih20.hosts.docker_cli import docker_environment
from dih20.hosts.facts import HostFacts
from dih20.image.archive import Archive, Delta, load_archive, write_archive
from dih20.image.archive.partial import PartialFile
from dih20.paths import build_dir

if TYPE_CHECKING:
    import docker

    from dih20.hosts.ssh import SshRunner

_LOAD_TIMEOUT_S = 3600


def ship_image(
    ui: Console, local: docker.DockerClient, host: SshRunner, facts: HostFacts, wanted: Wanted
) -> Archive:
    """Transfer the layers that the host lacks and load them; gives the archive that was sent."""
    with packed_image(ui, local, image_delta(facts, wanted)) as archive:
        way = load_by(facts)
        remote = wanted.remote("transfers", archive.path.name)
        if way != "connection":
            with ui.step("transfer", f"{len(archive.sent)} layers") as step:
                step.note = f"{archive.size_bytes / 1e6:.1f} MB"
                host.put(archive.path, remote, ui, sha256=archive.sha256)
        with ui.step("load", f"image {wanted.image.tag}"):
            if way == "connection":
                load_archive(host.docker(), archive.path)
            else:
                _load_there(host, facts.docker.path, remote, way)
                host.run(["rm", "-f", "--", remote])
            _require_image(host.docker(), wanted)
    return archive


@contextmanager
def packed_image(ui: Console, local: docker.DockerClient, delta: Delta) -> Iterator[Archive]:
    """Give the archive of a delta, to be sent; one that an earlier deploy did not get across is used again."""
    key = digest_of({"image": delta.layers.image_id, "send": delta.send, "tags": delta.layers.tags})
    folder = build_dir() / "deploy"
    path, record = folder / f"image-{key[:16]}.tar.zst", folder / f"image-{key[:16]}.json"

    def write() -> None:
        with ui.progress("pack the image") as advance:
            archive = write_archive(local, delta, path, advance=advance)
        draft = record.with_suffix(".part")
        draft.write_text(json.dumps({**asdict(archive), "path": path.name}))
        draft.replace(record)

    with PackedFile(path) as packed:
        with ui.step("pack", f"{len(delta.send)} layers") as step:
            was_there = packed.ensure(lambda: _archive(path, record) is not None, write)
            archive = _archive(path, record)
            assert archive is not None, "nobody removes it while it is held"
            step.note = (
                f"{archive.raw_bytes / 1e6:.1f} MB, {archive.size_bytes / 1e6:.1f} MB with zstd"
            )
            if was_there:
                step.status, step.note = "hit", "packed before"
        yield archive
        packed.remove()


def _archive(path: Path, record: Path) -> Archive | None:
    """Give the archive that a record tells of, when it is there whole."""
    if not (path.is_file() and record.is_file()):
        return None
    known = json.loads(record.read_text())
    lists = {name: tuple(known[name]) for name in ("tags", "sent", "skipped")}
    archive = Archive(**{**known, **lists, "path": path})
    return archive if path.stat().st_size == archive.size_bytes else None


def _load_there(host: SshRunner, docker: str, remote: str, way: str) -> None:
    env = docker_environment(host.host)
    if way == "engine":
        host.run([docker, "load", "--quiet", "--input", remote], env=env, timeout_s=_LOAD_TIMEOUT_S)
        return
    # A pipeline gives its last exit code, so zstd leaves its own behind; the image is looked for after.
    script = '{ zstd -dc -- "$1" || echo "zstd exited $?" >&2; } | "$2" load --quiet'
    argv = ["sh", "-c", script, "sh", remote, docker]
    host.run(argv, env=env, timeout_s=_LOAD_TIMEOUT_S)


def _require_image(client: docker.DockerClient, wanted: Wanted) -> None:
    """Raise unless the tag on the host now stands for the very layers that were wanted."""
    from docker.errors import ImageNotFound

    try:
        found = tuple(client.images.get(wanted.image.tag).attrs["RootFS"].get("Layers") or ())
    except ImageNotFound:
        found = ()
    if found != wanted.image.layers.diff_ids:
        raise DeployError(
            found=f"after the load, {wanted.image.tag} on {wanted.host.name} has {len(found)} layers: "
            f"{', '.join(layer[7:19] for layer in found) or 'it is not there'}",
            expected=f"the {len(wanted.image.layers.diff_ids)} layers of the image on this machine",
            remedy="look at the engine's log and free disk space on the host, then repeat",
        )


def ship_wheels(ui: Console, host: SshRunner, wanted: Wanted) -> None:
    """Transfer the wheels that are not on the host under their hash yet."""
    there = _files_there(host, wanted.remote("wheels"))
    for wheel in wanted.wheels:
        with ui.step("transfer", f"wheel {wheel.name} {wheel.version}") as step:
            if wheel.remote_name in there:
                step.status, step.note = "hit", "the host has it"
                continue
            host.put(
                wheel.path, wanted.remote("wheels", wheel.remote_name), ui, sha256=wheel.sha256
            )


def ship_tree(ui: Console, host: SshRunner, wanted: Wanted) -> None:
    """Transfer the engine tree as one archive, named after the tree's identity."""
    if wanted.tree is None:
        return
    with ui.step("transfer", f"engine tree {wanted.tree.identity[:12]}") as step:
        if wanted.tree.remote_name in _files_there(host, wanted.remote("trees")):
            step.status, step.note = "hit", "the host has it"
            return
        tree, path = wanted.tree, build_dir() / "deploy" / wanted.tree.remote_name
        with PackedFile(path) as packed:
            packed.ensure(path.is_file, lambda: pack_tree(tree, path))
            host.put(path, wanted.remote("trees", tree.remote_name), ui)
            packed.remove()


def pack_tree(tree: WantedTree, out: Path) -> None:
    """Write a tree as a tar whose bytes depend on its content alone: sorted, one owner, one time."""
    with PartialFile(out) as raw:
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as squeezed:
            with tarfile.open(fileobj=cast(BinaryIO, squeezed), mode="w|") as tar:
                for path in sorted(tree.path.rglob("*")):
                    tar.add(path, str(path.relative_to(tree.path)), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _files_there(host: SshRunner, folder: str) -> frozenset[str]:
    """Give the files below a folder of the host; a name appears there only once its content is verified."""
    script = 'cd "$1" 2>/dev/null || exit 0; find . -type f ! -name "*.part"'
    listing = host.run(["sh", "-c", script, "sh", folder]).text
    return frozenset(line.removeprefix("./") for line in listing.splitlines())
