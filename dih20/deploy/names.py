"""Finish a change of names that broke off: what serves is found again under the name in service.

`inv serve` renames NAME to NAME-previous and NAME-next to NAME, `inv rollback` exchanges NAME and NAME-previous
by way of NAME-rolled-back. A connection that breaks in between leaves a server without its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.deploy.lock import deploy_lock
from dih20.hosts.facts import container_names, made_by_us
from dih20.hosts.facts.engine import has_server

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from dih20.config import HostConfig
    from dih20.hosts.runner import Runner


def rolled_back(name: str) -> str:
    """Give the name that the replaced container has while a rollback exchanges names."""
    return f"{name}-rolled-back"


def finish_names(
    ui: Console, runner: Runner, client: docker.DockerClient, host: HostConfig
) -> bool:
    """Carry out, under the lock, what is left of a change of names; say whether anything was."""
    if not unfinished(client, host.container):
        return False
    with deploy_lock(runner, host.work_dir, "finish a change of names"):
        for container, name in unfinished(client, host.container):
            with ui.step("rename", f"container {container.name} to {name}"):
                container.rename(name)
    return True


def unfinished(client: docker.DockerClient, name: str) -> list[tuple[Container, str]]:
    """Give the renames that are certain: which container is to have which name."""
    name, previous, upcoming = container_names(name)
    aside, before = _find(client, rolled_back(name)), _find(client, previous)
    is_free = _find(client, name) is None
    if _is_ours(aside):
        if before is None:
            return [(aside, previous)]
        return [(before, name), (aside, previous)] if is_free and _is_ours(before) else []
    new = _find(client, upcoming)
    return [(new, name)] if is_free and _is_ours(new) and runs_server(new) else []


def runs_server(container: Any) -> bool:
    """Say whether a server was started in a container: whatever else runs there is no change-over to it."""
    if container.status != "running":
        return False
    top = container.top(ps_args="-eww -o pid,args")
    return has_server([str(row[1]) for row in top.get("Processes") or []])


def _is_ours(container: Any) -> bool:
    return container is not None and made_by_us(container.labels)


def _find(client: docker.DockerClient, name: str) -> Any:
    from docker.errors import NotFound

    try:
        return client.containers.get(name)
    except NotFound:
        return None
