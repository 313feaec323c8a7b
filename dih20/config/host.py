"""A host: where it is, what it must have, and what the container on it gets."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dih20.config.reading import Section


def _absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError(f"{path!r} is not an absolute path")
    return path


def _version(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise ValueError(f'{text!r} is not a version such as "580" or "580.95.05"')
    return text


def _log_size(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[kmg]", text):
        raise ValueError(f"{text!r} is not a size such as 100m or 1g")
    return text


AbsolutePath = Annotated[str, AfterValidator(_absolute)]
Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")]


class Mount(Section):
    """A folder of the host as the container sees it."""

    host: AbsolutePath
    container: AbsolutePath
    read_only: bool = False


class LogLimits(Section):
    """How much log the engine keeps of the container; fixed when the container is created."""

    max_size: Annotated[str, AfterValidator(_log_size)] = "100m"
    max_file: Annotated[int, Field(ge=1)] = 5


class HostConfig(Section):
    """One GPU host. configs/hosts/nv-h20.yaml is the manual of these keys."""

    name: Name
    address: Annotated[str, Field(min_length=1)]
    port: Port = 22
    user: str | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    connect_timeout_s: Annotated[float, Field(gt=0, le=600)] = 20.0

    docker: AbsolutePath | None = None
    docker_socket: AbsolutePath | None = None

    gpus: Annotated[int, Field(ge=0, le=64)]
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] = "9.0"
    driver_min: Annotated[str, AfterValidator(_version)] = "580"

    work_dir: AbsolutePath
    min_free_disk_gb: Annotated[float, Field(ge=0)] = 60.0

    container: Name = "di-h20"
    mounts: tuple[Mount, ...] = ()
    network: Literal["host", "bridge", "none"] = "host"
    ipc: Literal["host", "private"] = "host"
    shm_size_gb: Annotated[float, Field(gt=0)] | None = None
    memlock: Annotated[int, Field(ge=-1)] = -1
    stack: Annotated[int, Field(ge=-1)] = 67108864
    log: LogLimits = LogLimits()
    ports: tuple[Port, ...] = (8000,)

    is_rehearsal: bool = False

    @property
    def where(self) -> str:
        """Give the address the way messages and known_hosts write it: [address]:port."""
        return f"[{self.address}]:{self.port}"
