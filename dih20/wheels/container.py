"""Run one command in a container of an image: no network, cleared environment, live log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.errors import WheelError
from dih20.image.abandoned import job_labels, remove_jobs
from dih20.image.build_session import ended_by_signal
from dih20.image.output_lines import lines_of
from dih20.image.short_lived import deadline, engine_faults, short_lived
from dih20.paths import shown

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

_ROLE = "wheel-build"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What runs in the container, and what it sees.

    Args:
        environment: the whole environment of the command; the image's own is not passed on.
        read_only, writable: folders of this machine by their place in the container.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    read_only: Mapping[str, Path] = field(default_factory=dict)
    writable: Mapping[str, Path] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    timeout_s: float = 3600.0

    @property
    def command(self) -> list[str]:
        """Give the argument list that starts from an empty environment."""
        pairs = [f"{name}={value}" for name, value in sorted(self.environment.items())]
        return ["env", "-i", *pairs, *self.argv]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: int
    seconds: float
    out_of_memory: bool


def run_job(
    client: docker.DockerClient,
    image: str,
    job: Job,
    *,
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run to the end; every line goes to on_line as it comes and to the log file.

    The container is removed on every way out, an interrupt or SIGTERM included.
    """
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    made = short_lived(
        lambda: _create(client, image, job),
        image=image,
        expected="an image of this engine, and folders that it may mount",
        remedy="see `docker images`, and that the engine runs on this machine",
    )
    faults = engine_faults(
        f"while a container of {image} ran", expected="the container's output and its exit code"
    )
    with ended_by_signal(), made as container, faults:
        container.start()
        with (
            deadline(container, job.timeout_s) as is_overdue,
            log.open("a", encoding="utf-8") as file,
        ):
            for line in lines_of(container.logs(stream=True, follow=True)):
                file.write(line + "\n")
                file.flush()
                on_line(line)
            exit_code = int(container.wait()["StatusCode"])
            container.reload()
            killed = bool(container.attrs["State"].get("OOMKilled"))
    if is_overdue():
        raise WheelError(
            found=f"the build was still running after {job.timeout_s / 60:.0f} min",
            expected="an end within build.timeout_minutes of the recipe",
            remedy=f"see what it waits for in {shown(log)}, or raise the limit",
        )
    return Outcome(exit_code=exit_code, seconds=time.monotonic() - started, out_of_memory=killed)


def _create(client: docker.DockerClient, image: str, job: Job) -> Container:
    remove_jobs(client, _ROLE)
    return client.containers.create(image, **_settings(job))


def _settings(job: Job) -> dict[str, Any]:
    from docker.types import Mount, Ulimit

    mounts = [
        Mount(target=target, source=str(source.resolve()), type="bind", read_only=read_only)
        for folders, read_only in ((job.read_only, True), (job.writable, False))
        for target, source in sorted(folders.items())
    ]
    settings: dict[str, Any] = {
        "entrypoint": job.command,
        "command": [],
        "user": "0:0",
        "network_mode": "none",
        "mounts": mounts,
        "labels": job_labels(_ROLE, job.timeout_s),
        "init": True,
        "ulimits": [Ulimit(name="core", soft=0, hard=0)],
    }
    if job.memory_limit_bytes:
        # Without swap: a build that swaps is slower than one with fewer jobs, and looks hung.
        settings |= {"mem_limit": job.memory_limit_bytes, "memswap_limit": job.memory_limit_bytes}
    return settings
