"""Judge a host from its facts: is it fit for the container? Pure, and before anything is sent.

findings = preflight(facts, config)        # doctor shows them, deploy stops at a failed one
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dih20.doctor.registry import Finding
from dih20.errors import PreflightFailed
from dih20.hosts.docker_cli import no_docker
from dih20.hosts.facts import HostFacts
from dih20.hosts.facts.system import UNLIMITED
from dih20.hosts.gpu_preflight import gpu_findings

if TYPE_CHECKING:
    from dih20.config import HostConfig

_GB = 10**9
_SMALL_SHM_BYTES = 1 << 30


def preflight(facts: HostFacts, config: HostConfig) -> list[Finding]:
    """Give one finding per thing looked at; the order is the order in which a person would mend them."""
    return [
        *_engine(facts, config),
        *_disk(facts, config),
        *_mounts(facts, config),
        *_limits(facts, config),
        *_ports(facts, config),
        *gpu_findings(facts, config),
    ]


def require_fit(findings: list[Finding], name: str) -> None:
    """Raise PreflightFailed that lists every failed finding with its remedy."""
    failed = [finding for finding in findings if finding.status == "fail"]
    if failed:
        raise PreflightFailed(
            found=f"{name} is not fit for the deploy: " + "; ".join(f.found for f in failed),
            expected="; ".join(f.expected for f in failed),
            remedy="; ".join(dict.fromkeys(f.remedy for f in failed)),
        )


def _engine(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    if not facts.docker.path:
        error = no_docker(config.name, facts.docker)
        yield Finding.fail(error.found, expected=error.expected, remedy=error.remedy)
        return
    engine = facts.engine
    if engine is None or engine.fault:
        yield Finding.fail(
            f"the Docker engine does not answer {facts.docker.path}: {engine.fault if engine else ''}",
            expected=f"an engine that user {facts.system.user} may use",
            remedy="on the host start the engine and put the user into group docker, or set docker_socket in "
            f"configs/hosts/{config.name}.yaml",
        )
        return
    yield Finding.ok(
        f"{facts.docker.path}, Engine {engine.version}, API {engine.api}, store {engine.driver}"
    )
    if engine.is_rootless:
        yield Finding.fail(
            "the Docker engine runs rootless",
            expected="one that runs as root: limits such as memlock -1 are not a rootless engine's to give",
            remedy=f"set docker_socket in configs/hosts/{config.name}.yaml to the system's engine",
        )


def _disk(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    engine_root = facts.engine.root_dir if facts.engine else ""
    if engine_root:
        free = facts.engine_free_bytes
        wanted = f"{config.min_free_disk_gb:g} GB (min_free_disk_gb)"
        if free is None:
            yield Finding.warn(
                f"the free space at {engine_root} cannot be seen by {facts.system.user}",
                expected=wanted,
                remedy=f"look with `df -h {engine_root}` as root",
            )
        elif free < config.min_free_disk_gb * _GB:
            yield Finding.fail(
                f"{free / _GB:.1f} GB free at {engine_root}",
                expected=wanted,
                remedy="free space there (`docker system df` shows what images use), or lower min_free_disk_gb",
            )
        else:
            yield Finding.ok(f"{free / _GB:.1f} GB free at {engine_root}")
    if facts.system.work_dir_writable:
        yield Finding.ok(f"{config.work_dir}: {facts.system.work_dir_free_bytes / _GB:.1f} GB free")
    else:
        yield Finding.fail(
            f"{facts.system.user} cannot write to {facts.system.work_dir_parent}",
            expected=f"work_dir {config.work_dir}, there or to be made there",
            remedy=f"on the host make {config.work_dir} and give it to {facts.system.user}",
        )


def _mounts(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    if facts.system.missing_mounts:
        missing = ", ".join(facts.system.missing_mounts)
        yield Finding.fail(
            f"not on the host: {missing}",
            expected="every folder that mounts name",
            remedy=f"make or mount it on the host, or correct mounts in configs/hosts/{config.name}.yaml",
        )


def _limits(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    hard = facts.system.memlock_bytes
    if hard != UNLIMITED and (config.memlock == UNLIMITED or config.memlock > hard):
        # The engine, not the login, sets the container's limit; what it gave is read back inside.
        yield Finding.warn(
            f"a login's memlock limit is {hard} bytes; memlock {config.memlock} is asked for the container",
            expected="an engine that may raise it, as one that runs as root may",
            remedy="nothing, unless the read-back after the start fails: then raise LimitMEMLOCK of docker.service",
        )
    else:
        yield Finding.ok("memlock can be set as asked")
    if config.ipc == "host" and facts.system.shm_bytes < _SMALL_SHM_BYTES and config.gpus > 1:
        yield Finding.fail(
            f"/dev/shm of the host is {facts.system.shm_bytes >> 20} MiB",
            expected="1024 MiB or more, since ipc: host gives it to the ranks",
            remedy="on the host run `mount -o remount,size=50% /dev/shm`, and set it in /etc/fstab",
        )


def _ports(facts: HostFacts, config: HostConfig) -> Iterator[Finding]:
    if facts.ports is None:
        yield Finding.warn(
            "the host does not say which ports are in use",
            expected=f"free: {', '.join(map(str, config.ports))}",
            remedy="look with `ss -ltn` on the host",
        )
        return
    running = facts.container(config.container)
    busy = sorted(set(config.ports) & facts.ports)
    if not busy:
        yield Finding.ok(f"free ports: {', '.join(map(str, config.ports))}")
    elif running is not None and running.is_ours and running.status == "running":
        yield Finding.ok(f"ports {busy} are in use, while our {running.name} is running")
    else:
        yield Finding.fail(
            f"something listens on port {', '.join(map(str, busy))}",
            expected=f"free: {', '.join(map(str, config.ports))} (ports)",
            remedy="see what with `ss -ltnp` on the host; stop it, or change ports in "
            f"configs/hosts/{config.name}.yaml",
        )
