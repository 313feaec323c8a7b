"""The rehearsal's own configuration: the committed files, with one throwaway host and its own lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dih20.paths import REPOSITORY, cache_dir
from dih20.rehearse.dockerd import PrivateEngine
from dih20.rehearse.sshd import PrivateSshd, free_port

HOST = "rehearsal"
_MEMLOCK = 65536  # what an unprivileged machine lets a container set; a real host gets -1


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a rehearsal keeps things: below the cache, so that a second one is fast."""

    root: Path

    @classmethod
    def default(cls) -> Places:
        return cls(root=cache_dir() / "rehearsal")

    @property
    def builder(self) -> Path:
        return self.root / "builder"

    @property
    def host_engine(self) -> Path:
        return self.root / "host-engine"

    @property
    def host_work(self) -> Path:
        return self.root / "host-work"

    @property
    def configs(self) -> Path:
        return self.root / "configs"

    @property
    def lock(self) -> Path:
        return self.root / "di.lock.yaml"

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"


def write_configs(places: Places, host_engine: PrivateEngine, sshd: PrivateSshd) -> None:
    """Copy the committed configuration, put the image on the stand-in, and add the host."""
    shutil.rmtree(places.configs, ignore_errors=True)
    shutil.copytree(REPOSITORY / "configs", places.configs)
    _put_on_stand_in(places.configs / "images" / "di-h20.yaml")
    host = host_settings(places, host_engine, sshd)
    path = places.configs / "hosts" / f"{HOST}.yaml"
    path.write_text(yaml.safe_dump(host, sort_keys=False), encoding="utf-8")


def _put_on_stand_in(path: Path) -> None:
    image = yaml.safe_load(path.read_text(encoding="utf-8"))
    image["base"] = "stand-in"
    path.write_text(yaml.safe_dump(image, sort_keys=False, allow_unicode=True), encoding="utf-8")


def host_settings(places: Places, host_engine: PrivateEngine, sshd: PrivateSshd) -> dict[str, Any]:
    """Give the host file: no GPU, a memlock it may set, everything else as on a real host."""
    folders = ("data", "mnt-data", "work")
    for folder in folders:
        (places.host_work / folder).mkdir(parents=True, exist_ok=True)
    data, mnt_data, work = (str(places.host_work / folder) for folder in folders)
    return {
        "name": HOST,
        "address": "127.0.0.1",
        "port": sshd.port,
        "user": sshd.user,
        "identity_file": str(sshd.identity_file),
        "known_hosts": str(sshd.known_hosts),
        "docker_socket": host_engine.url.removeprefix("unix://"),
        "gpus": 0,
        "min_free_disk_gb": 2,
        "work_dir": work,
        "mounts": [
            {"host": data, "container": "/data"},
            {"host": mnt_data, "container": "/mnt/data"},
        ],
        "memlock": _MEMLOCK,
        "ports": [free_port()],
        "is_rehearsal": True,
    }


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for a while: the commands read them as a user's shell would set them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
