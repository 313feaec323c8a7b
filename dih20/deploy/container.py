"""What the container is created with: plain values in the engine's own terms.

They are sent as they stand here, compared with what the engine says it made, and hashed, so that a
second deploy knows that nothing has changed. Never privileged; GPUs by count or by id, never both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dih20.errors import UsageError

if TYPE_CHECKING:
    from dih20.config import HostConfig

OWNER = "dih20"
ENGINE_TREE = "/opt/di/engine"
_GB = 10**9
# The folder of the host that a container has for itself: settings, state, and the permission to serve.
RUN_FOLDER = "/opt/di/run"
SETTINGS, PERMISSION = "settings.json", "permission"
# The container's command waits for a permission, which is given once and lasts for one start: so that neither a
# deploy nor a `docker start` by hand starts a second engine beside one that serves. It costs nothing while it waits.
LAUNCH = f"""cd {RUN_FOLDER}
rm -f {PERMISSION}
mkfifo -m 622 {PERMISSION}
echo "[launch] waiting for ./inv serve"
read -r start <{PERMISSION}
rm -f {PERMISSION}
echo "[launch] start $start"
export DIH20_START="$start"
exec python3 -m dih20.serve --settings {RUN_FOLDER}/{SETTINGS}
"""
_ENTRYPOINT = ["/bin/sh", "-euc", LAUNCH]
_COMMAND = ["di-launch"]


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container as the engine's API takes it: `config` is the whole body of a create call."""

    name: str
    config: Mapping[str, Any]

    @property
    def host_config(self) -> Mapping[str, Any]:
        values: Mapping[str, Any] = self.config["HostConfig"]
        return values


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """Which GPUs a container gets: all (count -1), some by id, or none (count 0)."""

    count: int = 0
    ids: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.count and self.ids:
            raise UsageError(
                found=f"GPUs asked for by count ({self.count}) and by id ({', '.join(self.ids)})",
                expected="one of the two: the engine rejects a request that has both",
                remedy="leave out the ids to give the container all GPUs",
            )

    def requests(self) -> list[dict[str, Any]]:
        """Give the engine's device requests."""
        if not self.count and not self.ids:
            return []
        wanted: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]], "Options": {}}
        return [{**wanted, "Count": self.count, "DeviceIDs": list(self.ids)}]


def container_spec(
    host: HostConfig,
    *,
    image: str,
    labels: Mapping[str, str],
) -> ContainerSpec:
    """Give the container of a host; `labels` come on top of ours, which name host and config."""
    config: dict[str, Any] = {
        "Entrypoint": _ENTRYPOINT,
        "Cmd": _COMMAND,
        "WorkingDir": "/",
        "Env": [],  # the engine's own variables come with the engine, so that tuning needs no new container
        "HostConfig": _host_config(host),
    }
    if host.gpus:
        config["Env"] = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(host.gpus)))}"]
    own = {"dih20.owner": OWNER, "dih20.host": host.name}
    made_from = {"name": host.container, "config": config, "labels": {**labels, **own}}
    digest = digest_of({**made_from, "work_dir": host.work_dir})
    config["HostConfig"]["Mounts"].append(
        {
            "Type": "bind",
            "Source": run_folder(host, digest),
            "Target": RUN_FOLDER,
            "ReadOnly": False,
        }
    )
    config["Image"] = image
    config["Labels"] = {**labels, **own, "dih20.config": digest}
    return ContainerSpec(name=host.container, config=config)


def run_folder(host: HostConfig, config: str) -> str:
    """Give the host's folder that the container of this configuration has as RUN_FOLDER."""
    return f"{host.work_dir}/run/{config[:12]}"


def _host_config(host: HostConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "Privileged": False,
        "Init": True,
        "IpcMode": host.ipc,
        "NetworkMode": host.network,
        "RestartPolicy": {"Name": "no"},
        "Ulimits": [
            {"Name": "memlock", "Soft": host.memlock, "Hard": host.memlock},
            {"Name": "stack", "Soft": host.stack, "Hard": host.stack},
        ],
        "Mounts": [
            {"Type": "bind", "Source": m.host, "Target": m.container, "ReadOnly": m.read_only}
            for m in host.mounts
        ],
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": host.log.max_size, "max-file": str(host.log.max_file)},
        },
        "DeviceRequests": Gpus(count=-1 if host.gpus else 0).requests(),
    }
    if host.shm_size_gb is not None and host.ipc != "host":
        values["ShmSize"] = int(host.shm_size_gb * _GB)
    return values


def digest_of(value: object) -> str:
    """Give the sha256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
