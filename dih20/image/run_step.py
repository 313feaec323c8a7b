"""Run one step in a container of the image before it, and commit what it left as one layer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import (
    HashMismatch,
    HeaderMismatch,
    ImageError,
    NcclMismatch,
    ToolError,
)
from dih20.image.abandoned import step_name
from dih20.image.inside import headers, nccl
from dih20.image.output_lines import advice, error_lines, lines_of
from dih20.image.package_changes import check_changes, packages_of
from dih20.image.short_lived import deadline, engine_faults, short_lived
from dih20.lock import LockedFile
from dih20.paths import shown

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

COMMAND = ("/bin/sh", "-eu", "/mnt/step.sh")
ROLE = "image-step"
LIMIT_S = 3600.0  # a step that runs longer hangs: the longest, pip with gigabytes, takes minutes
_DEB_MISMATCH = 8  # of install_debs in images/*/lib/dpkg.sh
_KINDS: dict[int, type[ToolError]] = {
    headers.MISMATCH: HeaderMismatch,
    nccl.MISMATCH: NcclMismatch,
    _DEB_MISMATCH: HashMismatch,
}
_KEPT_CONFIG = (
    "User",
    "WorkingDir",
    "ExposedPorts",
    "Volumes",
    "StopSignal",
    "Healthcheck",
    "Shell",
)


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """One step as the engine is to run it.

    Args:
        folder: what it sees as /mnt.
        holder: who holds the engine's guard, as only_build gives it.
        debs: what it may install.
    """

    number: int
    count: int
    name: str
    parent: str
    folder: PurePath
    env: Mapping[str, str]
    log: Path
    holder: str
    debs: tuple[LockedFile, ...] = ()
    limit_s: float = LIMIT_S


def run_step(
    ui: Console, client: docker.DockerClient, run: StepRun, labels: Mapping[str, str]
) -> str:
    """Give the id of the new image; raise ImageError with the step's own error lines."""
    made = short_lived(
        lambda: _create(client, run),
        image=run.parent,
        expected="an engine on this machine that may mount folders of the cache",
        remedy="see the engine's log; an engine on another machine is reached with --host",
    )
    faults = engine_faults(
        f"during step {run.number} of {run.count}, {run.name}",
        expected="the container's output, its exit code and a committed layer",
    )
    with made as container, faults:
        before = packages_of(container)
        container.start()
        with deadline(container, run.limit_s) as is_overdue:
            lines = list(_follow(ui, container, run.log))
            code = int(container.wait()["StatusCode"])
        if is_overdue():
            raise _overdue(run, lines)
        if code != 0:
            raise _failure(run, code, lines)
        check_changes(run.name, before, packages_of(container), run.debs)
        config = image_config(client, run.parent, env=run.env, labels=labels)
        return str(container.commit(conf=config, message=f"dih20 step {run.name}").id)


def seal(client: docker.DockerClient, image: str, config: dict[str, Any]) -> str:
    """Give the id of an image with the same layers that says this of itself."""
    container = client.containers.create(image, entrypoint=["/bin/true"], network_mode="none")
    try:
        return str(container.commit(conf=config).id)
    finally:
        container.remove(force=True)


def image_config(
    client: docker.DockerClient, parent: str, *, env: Mapping[str, str], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Keep what the parent says of itself: the step's own command and user must not stay in the image."""
    was = client.images.get(parent).attrs.get("Config") or {}
    kept = {name: was[name] for name in _KEPT_CONFIG if was.get(name)}
    variables = dict(entry.partition("=")[::2] for entry in was.get("Env") or [])
    variables |= env
    return {
        **kept,
        "Entrypoint": was.get("Entrypoint") or [],
        "Cmd": was.get("Cmd") or [],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {**(was.get("Labels") or {}), **labels},
    }


def _create(client: docker.DockerClient, run: StepRun) -> Container:
    from docker.types import Mount

    config = client.images.get(run.parent).attrs.get("Config") or {}
    return client.containers.create(
        run.parent,
        name=step_name(run.holder),
        entrypoint=list(COMMAND),
        command=[],
        # What is set here stays in the image, so only where the image has another user.
        user="0:0" if config.get("User") else None,
        environment=dict(run.env),
        network_mode="none",
        mounts=[Mount("/mnt", str(run.folder), type="bind", read_only=True)],
    )


def _follow(ui: Console, container: Container, log: Path) -> Iterator[str]:
    """Print and log each line as it comes; give them all for the error report."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        for line in lines_of(container.logs(stream=True, follow=True)):
            out.write(line + "\n")
            out.flush()
            ui.line(f"    {line}", style="dim")
            yield line


def _overdue(run: StepRun, lines: list[str]) -> ImageError:
    last = lines[-1] if lines else "(it printed nothing)"
    return ImageError(
        found=f"step {run.number} of {run.count}, {run.name}, was still running after {run.limit_s:.0f} s; its last line: {last}",
        expected=f"an end within {run.limit_s:.0f} s",
        remedy=f"see what it waits for; full log: {shown(run.log)}",
    )


def _failure(run: StepRun, code: int, lines: list[str]) -> ToolError:
    own = "\n".join(f"  {line}" for line in error_lines(lines)) or "  (it printed nothing)"
    kind = _KINDS.get(code, ImageError)
    known = advice(lines)
    expected = {
        HeaderMismatch: "every required header, of the toolkit's CUDA release",
        NcclMismatch: "one NCCL: the locked one in the header, the distribution and the process",
        HashMismatch: "every package with the sha256 that the lock names; none was installed",
    }.get(kind, "exit code 0")
    killed = " (killed, most likely for memory)" if code == 137 else ""
    return kind(
        found=f"step {run.number} of {run.count}, {run.name}: `{' '.join(COMMAND)}` exited {code}{killed}:\n{own}",
        expected=expected,
        remedy=f"{known or 'mend what these lines name'}; full log: {shown(run.log)}",
    )
