"""Everything a deploy wants to know of a host, asked over one connection."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from dih20.hosts.docker_cli import DockerSearch, docker_environment, find_docker
from dih20.hosts.facts import engine, gpu, system
from dih20.hosts.facts.engine import Container, Engine, Image
from dih20.hosts.facts.fact import Fact
from dih20.hosts.facts.gpu import FabricManager, GpuProcess, Gpus, RowRemap
from dih20.hosts.facts.system import System
from dih20.hosts.runner import Runner

if TYPE_CHECKING:
    from dih20.config import HostConfig

T = TypeVar("T")
_AT_ONCE = 6
FABRIC_WAIT_S = 120.0
_FABRIC_PAUSE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """A host as it is now. engine is None when there is no docker command to ask."""

    name: str
    system: System
    docker: DockerSearch
    ports: frozenset[int] | None = None
    engine: Engine | None = None
    engine_free_bytes: int | None = None
    containers: tuple[Container, ...] = ()
    images: tuple[Image, ...] = ()
    is_busy: bool = False  # our container serves, or somebody works in it
    gpus: Gpus = field(default_factory=Gpus)
    gpu_processes: tuple[GpuProcess, ...] = ()
    row_remaps: tuple[RowRemap, ...] = ()
    links: dict[int, tuple[str, ...]] = field(default_factory=dict)
    fabric_manager: FabricManager | None = None

    def container(self, name: str) -> Container | None:
        return next((c for c in self.containers if c.name == name), None)


def container_names(name: str) -> tuple[str, str, str]:
    """Give the names a deploy uses: the one in service, the one before it, the one being made."""
    return name, f"{name}-previous", f"{name}-next"


def gather(
    runner: Runner, config: HostConfig, *, fabric_wait_s: float = FABRIC_WAIT_S
) -> HostFacts:
    """Ask for all facts, several at a time; an engine or GPU that does not answer is a fact too."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:

        def ask(fact: Fact[T]) -> Future[T]:
            return pool.submit(fact.ask, runner)

        search = pool.submit(find_docker, runner, config)
        machine = ask(system.system(config.work_dir, [mount.host for mount in config.mounts]))
        ports = ask(system.listening_ports())
        gpus = ask(gpu.gpus()) if config.gpus else None
        processes = ask(gpu.processes()) if config.gpus else None
        remaps = ask(gpu.row_remaps()) if config.gpus else None
        links = ask(gpu.links()) if config.gpus else None
        manager = ask(gpu.fabric_manager()) if config.gpus else None
        facts = HostFacts(
            name=config.name,
            system=machine.result(),
            docker=search.result(),
            ports=ports.result(),
            gpus=gpus.result() if gpus else Gpus(),
            gpu_processes=processes.result() if processes else (),
            row_remaps=remaps.result() if remaps else (),
            links=links.result() if links else {},
            fabric_manager=manager.result() if manager else None,
        )
        if facts.docker.path:
            facts = _with_engine(facts, runner, config, pool)
    return _after_fabric(facts, runner, fabric_wait_s)


def _with_engine(
    facts: HostFacts, runner: Runner, config: HostConfig, pool: ThreadPoolExecutor
) -> HostFacts:
    docker, env = facts.docker.path, docker_environment(config)
    about = pool.submit(engine.engine(docker, env).ask, runner)
    api = pool.submit(engine.api_version(docker, env).ask, runner)
    found = pool.submit(
        engine.containers(docker, env, container_names(config.container)).ask, runner
    )
    images = pool.submit(engine.images(docker, env).ask, runner)
    busy = pool.submit(engine.busy(docker, env, config.container).ask, runner)
    answering = about.result()
    if answering.fault:
        return replace(facts, engine=answering)  # the other answers are the same fault
    free = pool.submit(system.free_bytes(answering.root_dir or "/").ask, runner)
    return replace(
        facts,
        engine=replace(answering, api=api.result()),
        engine_free_bytes=free.result(),
        containers=found.result(),
        images=images.result(),
        is_busy=busy.result(),
    )


def _after_fabric(facts: HostFacts, runner: Runner, wait_s: float) -> HostFacts:
    """Ask again while GPUs are joining the fabric: it takes a minute or two after a boot, no more."""
    deadline = time.monotonic() + wait_s
    while is_joining_fabric(facts.gpus) and time.monotonic() + _FABRIC_PAUSE_S <= deadline:
        time.sleep(_FABRIC_PAUSE_S)
        facts = replace(facts, gpus=gpu.gpus().ask(runner))
    return facts


def is_joining_fabric(gpus: Gpus) -> bool:
    return any(one.fabric_state.lower() == "in progress" for one in gpus.gpus)
