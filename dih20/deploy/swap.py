"""Put the new container in the place of the old one, and the old one back when that fails.

The new one is made under NAME-next and takes the name only after it passed its checks, so whatever
ends this program in between, NAME is still the container it was. Two engines do not fit on one
host, so the old one is stopped first. It is kept as NAME-previous.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.deploy.container import ContainerSpec
from dih20.deploy.names import runs_server
from dih20.errors import ContainerConflict, DeployError, ToolError
from dih20.hosts.facts import container_names, made_by_us
from dih20.paths import build_dir, shown

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

STOP_TIMEOUT_S = 60
REMOVAL_TIMEOUT_S = 30.0

Check = Callable[["Container"], None]


def swap(
    ui: Console,
    client: docker.DockerClient,
    spec: ContainerSpec,
    *,
    before_start: Check,
    after_start: Check,
) -> Container:
    """Give the new container, running under its name.

    Args:
        before_start: looks at the created container, while the old one still runs.
        after_start: looks into the running container; what either raises brings the old one back.
    """
    name, previous, upcoming = container_names(spec.name)
    wait_until_removed(client, name)
    _remove_ours(client, upcoming)
    old = find(client, name)
    with ui.step("create", f"container {name}"):
        new = _create(client, spec, upcoming)
    was_running = old is not None and old.status in ("running", "restarting", "paused")
    with _restoring(ui, new, old if was_running else None, name):
        before_start(new)
        if old is not None and was_running:
            with ui.step("stop", f"container {name}") as step:
                step.note = f"{old.short_id}, kept as {previous}"
                old.stop(timeout=STOP_TIMEOUT_S)
        with ui.step("start", f"container {name}"):
            start(new)
        after_start(new)
    if old is not None:
        _remove_ours(client, previous)
        old.rename(previous)
    new.rename(name)
    new.reload()
    return new


def stage(
    ui: Console,
    client: docker.DockerClient,
    spec: ContainerSpec,
    *,
    before_start: Check,
    after_start: Check,
) -> Container:
    """Give the new container beside one that serves: made, looked into while it waits, then stopped."""
    name, _, upcoming = container_names(spec.name)
    _remove_ours(client, upcoming)
    with ui.step("create", f"container {upcoming}"):
        new = _create(client, spec, upcoming)
    with _restoring(ui, new, None, name):
        before_start(new)
        with ui.step("start", f"container {upcoming}"):
            start(new)
        after_start(new)
        with ui.step("stop", f"container {upcoming}") as step:
            new.stop(timeout=STOP_TIMEOUT_S)
            step.note = "it waits for ./inv serve"
    new.reload()
    return new


def remove_upcoming(ui: Console, client: docker.DockerClient, name: str) -> None:
    """Remove what an earlier deploy left waiting."""
    upcoming = container_names(name)[2]
    with ui.step("remove", f"container {upcoming}"):
        _remove_ours(client, upcoming)


def start(container: Container) -> None:
    """Start a container; what the engine says against it becomes the error."""
    from docker.errors import APIError

    try:
        container.start()
    except APIError as fault:
        raise DeployError(
            found=f"the engine cannot start {container.name}: {fault.explanation or fault}",
            expected="a started container with the limits, devices and mounts that the host's configuration asks for",
            remedy="mend what it names: rlimit: lower memlock or stack, or raise LimitMEMLOCK of docker.service; "
            "device driver: install the NVIDIA container toolkit",
        ) from fault


def find(client: docker.DockerClient, name: str) -> Container | None:
    from docker.errors import NotFound

    try:
        return client.containers.get(name)
    except NotFound:
        return None


def wait_until_removed(client: docker.DockerClient, name: str) -> None:
    """Wait while the engine removes a container of this name; removal goes on after its call returns."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while (found := find(client, name)) is not None and found.status == "removing":
        if time.monotonic() > deadline:
            raise ContainerConflict(
                found=f"container {name} ({found.short_id}) is still being removed after {REMOVAL_TIMEOUT_S:.0f} s",
                expected="the end of the removal",
                remedy="see the engine's log on the host; a device or mount in use holds it up; then repeat",
            )
        time.sleep(0.5)


def _create(client: docker.DockerClient, spec: ContainerSpec, name: str) -> Container:
    from docker.errors import APIError

    try:
        made: dict[str, Any] = client.api.create_container_from_config(  # type: ignore[no-untyped-call]
            dict(spec.config), name
        )
    except APIError as fault:
        raise DeployError(
            found=f"the engine does not create {spec.name}: {fault.explanation or fault}",
            expected="a container with the settings of the host's configuration",
            remedy="mend what it names (a folder under mounts that is not on the host?), then repeat",
        ) from fault
    return client.containers.get(made["Id"])


def _remove_ours(client: docker.DockerClient, name: str) -> None:
    """Remove a leftover of ours; the plan has refused a foreign one, and so does this."""
    leftover = find(client, name)
    if leftover is None:
        return
    if not made_by_us(leftover.labels):
        raise ContainerConflict(
            found=f"container {name} is not ours: id {leftover.short_id}",
            expected=f"the name {name} free, or held by a container that this tool made",
            remedy=f"ask whose it is; rename it with `docker rename {name} OTHER-NAME`, then repeat",
        )
    if runs_server(leftover):
        raise ContainerConflict(
            found=f"container {name} ({leftover.short_id}) serves: a change-over to it broke off",
            expected=f"only the container in service to serve, under {name.rpartition('-')[0]}",
            remedy="run `./inv serve --host NAME`, which gives it the name, or `./inv stop --host NAME`; then repeat",
        )
    leftover.remove(force=True)


@contextmanager
def _restoring(ui: Console, new: Container, old: Container | None, name: str) -> Iterator[None]:
    """On any failure, also an interrupt: keep the evidence, remove the new one, start the old again."""
    try:
        yield
    except BaseException as fault:
        folder = _clear_away(ui, new, old, name)
        if isinstance(fault, ToolError) and folder:
            fault.remedy += f"; what it left: {shown(folder)}"
        raise


def _clear_away(ui: Console, new: Container, old: Container | None, name: str) -> Path | None:
    """Undo a swap; when the host cannot be reached for it, say what to run there."""
    from docker.errors import DockerException
    from requests import RequestException

    folder = None
    try:
        folder = keep_evidence(new, name)
        ui.warn(f"{name} did not come up; its log and settings are in {shown(folder)}")
        new.remove(force=True)
        if old is not None:
            with ui.step("restore", f"container {name}") as step:
                old.start()
                step.note = f"{old.short_id} runs again"
    except (DockerException, RequestException) as lost:
        ui.warn(f"the host could not be set back: {lost}")
        commands = f"docker rm -f {new.short_id}" + (f" && docker start {name}" if old else "")
        ui.warn(f"run there: {commands}")
    return folder


def keep_evidence(container: Container, name: str) -> Path:
    """Write a container's log and settings to a folder under build/logs."""
    folder = build_dir() / "logs" / f"deploy-{name}-{time.strftime('%Y%m%dT%H%M%S')}"
    folder.mkdir(parents=True, exist_ok=True)
    container.reload()
    attributes: dict[str, Any] = container.attrs
    (folder / "inspect.json").write_text(json.dumps(attributes, indent=2))
    (folder / "container.log").write_bytes(container.logs(tail=2000))
    return folder
