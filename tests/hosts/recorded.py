"""A fake host that answers each probe with text in the form that the real commands print.

The forms of nvidia-smi's answers were taken from a driver of the 580 series: CSV without units,
`N/A` for a fabric that is not there, escape codes in the header of `topo -m`, exit 2 for a bad query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dih20.config import HostConfig
from dih20.hosts.docker_cli import FIND_DOCKER
from dih20.hosts.facts import container_names, engine, gpu, system
from dih20.hosts.facts.fact import Fact
from dih20.hosts.fake import FakeRunner

DOCKER = "/usr/bin/docker"
_GPU = "{i}, GPU-{i}, NVIDIA H20-3e, 9.0, 580.95.05, 143771, 0, Disabled, 0, Completed, Success"

HEALTHY: Mapping[str, str] = {
    "search": f"{DOCKER}\n/usr/bin:/bin\n/usr/local/bin:/usr/bin:/bin\n",
    "system": "os=Ubuntu 24.04.2 LTS\nkernel=6.8.0-60-generic\narch=x86_64\nuser=ops\nhostname=gpu-17\n"
    "work_dir_parent=/data\nwork_dir_writable=yes\nwork_dir_free_kib=4882812500\nshm_kib=943718400\n"
    "memlock_kib=unlimited\nzstd=/usr/bin/zstd\ntoolkit=/usr/bin/nvidia-container-runtime-hook\n",
    "ports": "LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\nLISTEN 0 128 [::]:22 [::]:*\n",
    "info": json.dumps(
        {
            "ServerVersion": "28.2.2",
            "Driver": "overlay2",
            "DriverStatus": [["Backing Filesystem", "extfs"]],
            "DockerRootDir": "/var/lib/docker",
            "Runtimes": {"nvidia": {}, "runc": {}},
            "SecurityOptions": ["name=seccomp,profile=builtin"],
        }
    ),
    "api": "1.50\n",
    "free": "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/nvme0n1 9000000000 1 488281250 1% /\n",
    "containers": "[]",
    "images": "[]",
    "busy": "PID COMMAND\n",
    "gpus": "".join(_GPU.format(i=i) + "\n" for i in range(8)),
    "processes": "",
    "remaps": "".join(f"GPU-{i}, No, No\n" for i in range(8)),
    "topo": "\t\x1b[4m"
    + "\t".join(f"GPU{i}" for i in range(8))
    + "\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    + "".join(
        f"GPU{i}\t" + "\t".join(" X " if i == j else "NV18" for j in range(8)) + "\tSYS\t0-91\t0\n"
        for i in range(8)
    )
    + "NIC0\t"
    + "\t".join(["SYS"] * 8)
    + "\t X \t\t\n\nLegend:\n\n  X    = Self\n",
    "fabric": "active\nFabric Manager version is : 580.95.05\n",
}


def questions(host: HostConfig) -> dict[str, Fact[Any]]:
    """Give the facts by the names used in cases."""
    mounts = [mount.host for mount in host.mounts]
    return {
        "system": system.system(host.work_dir, mounts),
        "ports": system.listening_ports(),
        "info": engine.engine(DOCKER, {}),
        "api": engine.api_version(DOCKER, {}),
        "free": system.free_bytes("/var/lib/docker"),
        "containers": engine.containers(DOCKER, {}, container_names(host.container)),
        "images": engine.images(DOCKER, {}),
        "busy": engine.busy(DOCKER, {}, host.container),
        "gpus": gpu.gpus(),
        "processes": gpu.processes(),
        "remaps": gpu.row_remaps(),
        "topo": gpu.links(),
        "fabric": gpu.fabric_manager(),
    }


def recorded_host(host: HostConfig, answers: Mapping[str, Any]) -> FakeRunner:
    """Give a fake host; an answer is stdout, or {"exit": n, "stdout": ..., "stderr": ...}."""
    runner = FakeRunner(name=host.name)
    told = {**HEALTHY, **answers}
    runner.expect(FIND_DOCKER, stdout=told["search"])
    for name, fact in questions(host).items():
        answer = told[name]
        if isinstance(answer, str):
            answer = {"stdout": answer}
        runner.expect(
            fact.argv,
            stdout=answer.get("stdout", ""),
            stderr=answer.get("stderr", ""),
            exit_code=answer.get("exit", 0),
        )
    return runner
