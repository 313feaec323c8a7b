"""The table of jobs, ci/jobs.yaml, as frozen values."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dih20.config.reading import Section, read_config
from dih20.errors import UsageError
from dih20.paths import REPOSITORY

TABLE = REPOSITORY / "ci" / "jobs.yaml"

When = Literal["change", "weekly", "by-hand"]
Command = Annotated[str, Field(pattern=r"^\./inv [a-z][a-z-]*( [A-Za-z0-9_.,/-]+)*$")]


class Job(Section):
    """One job. The comment at the top of ci/jobs.yaml says what each key is for."""

    says: Annotated[str, Field(min_length=1)]
    run: Annotated[tuple[Command, ...], Field(min_length=1)]
    in_image: tuple[Command, ...] = ()
    when: When
    runner: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")], ...], Field(min_length=1)
    ]
    as_root: bool
    minutes: Annotated[int, Field(gt=0, le=360)]

    @property
    def is_self_hosted(self) -> bool:
        return "self-hosted" in self.runner

    @model_validator(mode="after")
    def _no_strange_code_on_own_machines(self) -> Job:
        if self.is_self_hosted and self.when == "change":
            raise ValueError(
                "a self-hosted runner would run code of pull requests; use weekly or by-hand"
            )
        return self

    def commands(self, *, in_image: bool) -> list[list[str]]:
        """Give the commands as argument lists."""
        return [shlex.split(command) for command in (self.in_image if in_image else self.run)]


class Table(Section):
    """The file ci/jobs.yaml."""

    jobs: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], Job]


def load_jobs(path: Path = TABLE) -> dict[str, Job]:
    """Give every job by its name, in the table's order."""
    return read_config(path, Table).jobs


def find_job(name: str, *, in_image: bool) -> Job:
    """Give a job, or raise UsageError that lists what there is."""
    jobs = load_jobs()
    if name not in jobs:
        raise UsageError(
            found=f"no job {name!r} in ci/jobs.yaml",
            expected=f"one of: {', '.join(jobs)}",
            remedy="correct --run",
        )
    if in_image and not jobs[name].in_image:
        able = [other for other, job in jobs.items() if job.in_image]
        raise UsageError(
            found=f"job {name} cannot run inside the CI image",
            expected=f"one of: {', '.join(able)}",
            remedy=f"run it on this machine: ./inv ci --run {name}",
        )
    return jobs[name]
