"""Run a job's commands inside the CI image: a copy of the working tree, no network, nothing kept."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.ci.checkout import write_checkout
from dih20.ci.ended import Ended
from dih20.console import Console
from dih20.errors import EngineError
from dih20.image.abandoned import job_labels, remove_jobs
from dih20.image.build_session import ended_by_signal
from dih20.image.output_lines import lines_of
from dih20.lock.engine import client_faults
from dih20.paths import REPOSITORY

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

CHECKOUT = "/ci/checkout"
_ROLE = "ci-job"
# Some tests ask git what is in the repository; a copy without history answers them.
_PRELUDE = ("git init -q .", "git add -A")


def run_commands(
    ui: Console,
    client: docker.DockerClient,
    image: str,
    commands: Sequence[Sequence[str]],
    *,
    log: Path,
    limit_s: float,
) -> Ended:
    """Run the commands in order; the first that fails, or that is running when the time is up, is the last."""
    script = "\n".join([*_PRELUDE, *(shlex.join(command) for command in commands)])
    with _container(client, image, script, limit_s) as container, _engine_faults():
        with ui.step("copy", "the working tree into the image") as step:
            with tempfile.TemporaryFile() as tar:
                count = write_checkout(REPOSITORY, tar, prefix=CHECKOUT.lstrip("/"))
                step.note = f"{count} files, {tar.tell() / 1e6:.1f} MB"
                tar.seek(0)
                container.put_archive("/", tar)
        container.start()
        with _deadline(container, limit_s) as overdue:
            _follow(ui, container, log)
            code = int(container.wait()["StatusCode"])
        return Ended(exit_code=code, is_overdue=overdue.is_set())


@contextlib.contextmanager
def _container(
    client: docker.DockerClient, image: str, script: str, limit_s: float
) -> Iterator[Container]:
    with ended_by_signal():
        try:
            remove_jobs(client, _ROLE)
            container = client.containers.create(
                image,
                entrypoint=["/bin/sh", "-eu", "-c", script],
                command=[],
                working_dir=CHECKOUT,
                environment={"CI": "true", "HOME": "/root", "PYTHONUNBUFFERED": "1"},
                network_mode="none",
                init=True,  # reaps what tests leave to process 1, as a machine's init does
                labels=job_labels(_ROLE, limit_s),
            )
        except client_faults() as problem:
            raise EngineError(
                found=f"no container can be made from {image}: {problem}",
                expected="the CI image in this engine",
                remedy="run `./inv ci-image`, then the command again",
            ) from None
        try:
            yield container
        finally:
            with contextlib.suppress(*client_faults()):
                container.remove(force=True)


@contextlib.contextmanager
def _engine_faults() -> Iterator[None]:
    """Say in one error that the engine, and not the job, failed."""
    try:
        yield
    except client_faults() as problem:
        raise EngineError(
            found=f"the engine failed during the job: {problem}",
            expected="the job's output and its exit code",
            remedy="look at the engine's log and its free disk space, then run the command again",
        ) from None


@contextlib.contextmanager
def _deadline(container: Container, limit_s: float) -> Iterator[threading.Event]:
    overdue = threading.Event()

    def kill() -> None:
        overdue.set()
        with contextlib.suppress(*client_faults()):
            container.kill()

    timer = threading.Timer(limit_s, kill)
    timer.start()
    try:
        yield overdue
    finally:
        timer.cancel()


def _follow(ui: Console, container: Container, log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", buffering=1, encoding="utf-8", errors="backslashreplace") as out:
        for line in lines_of(container.logs(stream=True, follow=True)):
            out.write(line + "\n")
            ui.line(f"    {line}", style="dim")
