"""Run a job's commands inside the CI image: a copy of the working tree, no network, nothing kept."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.ci.checkout import write_checkout
from dih20.ci.ended import Ended
from dih20.console import Console
from dih20.image.abandoned import job_labels, remove_jobs
from dih20.image.build_session import ended_by_signal
from dih20.image.output_lines import lines_of
from dih20.image.short_lived import deadline, engine_faults, short_lived
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
    made = short_lived(
        lambda: _create(client, image, script, limit_s),
        image=image,
        expected="the CI image in this engine",
        remedy="run `./inv ci-image`, then the command again",
    )
    faults = engine_faults("during the job", expected="the job's output and its exit code")
    with ended_by_signal(), made as container, faults:
        with ui.step("copy", "the working tree into the image") as step:
            with tempfile.TemporaryFile() as tar:
                count = write_checkout(REPOSITORY, tar, prefix=CHECKOUT.lstrip("/"))
                step.note = f"{count} files, {tar.tell() / 1e6:.1f} MB"
                tar.seek(0)
                container.put_archive("/", tar)
        container.start()
        with deadline(container, limit_s) as is_overdue:
            _follow(ui, container, log)
            code = int(container.wait()["StatusCode"])
        return Ended(exit_code=code, is_overdue=is_overdue())


def _create(client: docker.DockerClient, image: str, script: str, limit_s: float) -> Container:
    remove_jobs(client, _ROLE)
    return client.containers.create(
        image,
        entrypoint=["/bin/sh", "-eu", "-c", script],
        command=[],
        working_dir=CHECKOUT,
        environment={"CI": "true", "HOME": "/root", "PYTHONUNBUFFERED": "1"},
        network_mode="none",
        init=True,  # reaps what tests leave to process 1, as a machine's init does
        labels=job_labels(_ROLE, limit_s),
    )


def _follow(ui: Console, container: Container, log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", buffering=1, encoding="utf-8", errors="backslashreplace") as out:
        for line in lines_of(container.logs(stream=True, follow=True)):
            out.write(line + "\n")
            ui.line(f"    {line}", style="dim")
