"""Hosts for tests: a HostConfig for a private sshd, and facts of a healthy eight-GPU host."""

from __future__ import annotations

from typing import Any

from dih20.config import HostConfig
from dih20.hosts.docker_cli import DockerSearch
from dih20.hosts.facts import Engine, FabricManager, Gpu, Gpus, HostFacts, System
from dih20.rehearse.sshd import PrivateSshd


def host_for(server: PrivateSshd, **more: Any) -> HostConfig:
    """Give the configuration of a private sshd; `more` overrides single keys."""
    values: dict[str, Any] = {
        "name": "loopback",
        "address": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "identity_file": str(server.identity_file),
        "known_hosts": str(server.known_hosts),
        "connect_timeout_s": 10,
        "gpus": 0,
        "work_dir": str(server.folder / "work"),
        "min_free_disk_gb": 0,
        "memlock": 1 << 20,
        **more,
    }
    return HostConfig.model_validate(values)


def production_host(**more: Any) -> HostConfig:
    """Give the configuration of the eight-GPU host, as configs/hosts/nv-h20.yaml has it."""
    values: dict[str, Any] = {
        "name": "nv-h20",
        "address": "nv-h20",
        "gpus": 8,
        "work_dir": "/data/di-h20",
        "mounts": [
            {"host": "/data", "container": "/data"},
            {"host": "/mnt/data", "container": "/mnt/data"},
        ],
        **more,
    }
    return HostConfig.model_validate(values)


def gpu(index: int, **more: Any) -> Gpu:
    values: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H20-3e",
        "compute_capability": "9.0",
        "driver": "580.95.05",
        "memory_mib": 143771,
        "used_mib": 0,
        "is_mig": False,
        "uncorrected_errors": 0,
        "fabric_state": "Completed",
        "fabric_status": "Success",
        **more,
    }
    return Gpu(**values)


def healthy_facts(**more: Any) -> HostFacts:
    """Give the facts of a host with nothing wrong; `more` replaces single facts."""
    values: dict[str, Any] = {
        "name": "nv-h20",
        "system": System(
            os="Ubuntu 24.04.2 LTS",
            kernel="6.8.0-60-generic",
            arch="x86_64",
            user="ops",
            hostname="gpu-17",
            work_dir_parent="/data",
            work_dir_writable=True,
            work_dir_free_bytes=5 * 10**12,
            missing_mounts=(),
            shm_bytes=900 << 30,
            memlock_bytes=-1,
            zstd="/usr/bin/zstd",
            gpu_toolkit="/usr/bin/nvidia-container-runtime-hook",
        ),
        "docker": DockerSearch(path="/usr/bin/docker", searched=("/usr/bin",)),
        "engine": Engine(
            version="28.2.2",
            api="1.50",
            driver="overlay2",
            root_dir="/var/lib/docker",
            runtimes=("nvidia", "runc"),
        ),
        "engine_free_bytes": 500 * 10**9,
        "ports": frozenset({22}),
        "gpus": Gpus(gpus=tuple(gpu(i) for i in range(8))),
        "links": dict.fromkeys(range(8), ("NV18",) * 7),
        "fabric_manager": FabricManager(service="active", version="580.95.05"),
        **more,
    }
    return HostFacts(**values)
