"""Facts about the host's Docker engine: versions, image store, runtimes, containers, image layers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dih20.hosts.facts.fact import Fact
from dih20.hosts.runner import Result, checked

Env = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers; `fault` is what docker said when it does not."""

    version: str = ""
    api: str = ""
    driver: str = ""
    driver_status: tuple[tuple[str, str], ...] = ()
    root_dir: str = ""
    runtimes: tuple[str, ...] = ()
    has_cdi_gpus: bool = False
    is_rootless: bool = False
    fault: str = ""

    @property
    def reads_zstd(self) -> bool:
        """Say whether `docker load` itself takes an archive packed with zstd (Engine 23 and newer)."""
        major = re.match(r"\d+", self.version)
        return bool(major) and int(major[0] if major else 0) >= 23


def made_by_us(labels: Mapping[str, str]) -> bool:
    """Say whether a container was made by a deploy; one made by hand inherits our images' owner label."""
    return labels.get("dih20.owner") == "dih20" and "dih20.config" in labels


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container on the host, as far as a deploy needs to know it."""

    id: str
    name: str
    status: str  # created, running, paused, restarting, removing, exited, dead
    image_id: str
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return made_by_us(self.labels)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on the host with its layers (diff ids, the base first)."""

    id: str
    tags: tuple[str, ...]
    layers: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


def engine(docker: str, env: Env) -> Fact[Engine]:
    return Fact(argv=(docker, "info", "--format", "{{json .}}"), parse=parse_engine, env=env)


def parse_engine(result: Result) -> Engine:
    """Read `docker info`, which exits 0 on some versions although the engine did not answer."""
    try:
        info: dict[str, Any] = json.loads(result.text or "{}")
    except ValueError:
        info = {}
    problems = info.get("ServerErrors") or []
    if not info.get("ServerVersion"):
        fault = "; ".join(map(str, problems)) or result.last_lines(3) or "docker info said nothing"
        return Engine(fault=fault)
    return Engine(
        version=str(info["ServerVersion"]),
        driver=str(info.get("Driver", "")),
        driver_status=tuple((str(a), str(b)) for a, b in info.get("DriverStatus") or []),
        root_dir=str(info.get("DockerRootDir", "")),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        has_cdi_gpus=any("nvidia" in str(d) for d in info.get("DiscoveredDevices") or []),
        is_rootless=any("rootless" in str(o) for o in info.get("SecurityOptions") or []),
    )


def api_version(docker: str, env: Env) -> Fact[str]:
    argv = (docker, "version", "--format", "{{.Server.APIVersion}}")
    return Fact(argv=argv, parse=lambda result: result.text.strip() if result.ok else "", env=env)


def containers(docker: str, env: Env, names: Sequence[str]) -> Fact[tuple[Container, ...]]:
    """Ask for containers by name; one that does not exist is left out."""
    return Fact(argv=(docker, "container", "inspect", *names), parse=parse_containers, env=env)


def parse_containers(result: Result) -> tuple[Container, ...]:
    """Read `docker container inspect`, which exits 1 when any name is missing and prints the rest."""
    said = result.stderr.decode(errors="replace")
    entries = json.loads(result.text or "[]")
    # A login's start-up files may write to stderr too, so that a line there is no failure by itself.
    if len(entries) + said.count("No such container") < len(result.argv[3:]):
        checked(result, "the host")
    return tuple(
        Container(
            id=str(entry["Id"]),
            name=str(entry["Name"]).lstrip("/"),
            status=str(entry["State"]["Status"]),
            image_id=str(entry["Image"]),
            image=str(entry["Config"].get("Image", "")),
            labels=dict(entry["Config"].get("Labels") or {}),
        )
        for entry in entries
    )


_IDLE = ("di-launch", "sleep infinity")
_SERVER = "dih20.serve"


def is_busy(commands: Sequence[str]) -> bool:
    """Say whether a container's processes do more than wait for the permission to serve."""
    return any(not command.rstrip().endswith(_IDLE) for command in commands)


def has_server(commands: Sequence[str]) -> bool:
    """Say whether a server has been started among a container's processes; one that waits has none."""
    return is_busy([command for command in commands if _SERVER in command])


def busy(docker: str, env: Env, name: str) -> Fact[bool]:
    """Ask whether a container serves, or somebody works in it; one that does not run is not busy."""
    return Fact(argv=(docker, "top", name, "-eww", "-o", "pid,args"), parse=parse_busy, env=env)


def parse_busy(result: Result) -> bool:
    rows = [line.split(None, 1) for line in result.text.splitlines()[1:] if line.strip()]
    return result.ok and is_busy([row[1] for row in rows if len(row) == 2])


# $1: docker. One call names the images, one describes them all; a failure of either is the exit code.
_IMAGES = """
ids=$("$1" image ls --quiet --no-trunc) || exit $?
[ -z "$ids" ] && echo '[]' && exit 0
"$1" image inspect $ids
"""


def images(docker: str, env: Env) -> Fact[tuple[Image, ...]]:
    return Fact(argv=("sh", "-c", _IMAGES, "sh", docker), parse=parse_images, env=env)


def parse_images(result: Result) -> tuple[Image, ...]:
    """Read `docker image inspect`; an image removed since the list was made is left out."""
    complaints = result.stderr.decode(errors="replace").splitlines()
    if any(line.strip() and "No such image" not in line for line in complaints):
        checked(result, "the host")
    found = {
        str(entry["Id"]): Image(
            id=str(entry["Id"]),
            tags=tuple(entry.get("RepoTags") or ()),
            layers=tuple(entry["RootFS"].get("Layers") or ()),
            labels=dict((entry.get("Config") or {}).get("Labels") or {}),
        )
        for entry in json.loads(result.text or "[]")
    }
    return tuple(found.values())
