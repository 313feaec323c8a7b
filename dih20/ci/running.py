"""List the jobs, or run one: on this machine or inside the CI image."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from dih20.ci.ended import Ended
from dih20.ci.here import run_here
from dih20.ci.jobs import Job, find_job, load_jobs
from dih20.ci.times import record, shown_time
from dih20.console import Console
from dih20.errors import TestsFailed, UsageError
from dih20.paths import build_dir, shown
from dih20.plan import Action, Plan

MACHINE, IMAGE = "on this machine", "in the image"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a job ended, and what else is worth keeping of it."""

    ended: Ended
    facts: dict[str, Any] = field(default_factory=dict)


def list_jobs(ui: Console) -> dict[str, Any]:
    """Print the table of jobs with the times they last took here."""
    jobs = load_jobs()
    rows = [
        [
            name,
            job.says,
            job.when,
            ", ".join(job.runner),
            "yes" if job.in_image else "-",
            shown_time(name) or "never run here",
        ]
        for name, job in jobs.items()
    ]
    ui.table(["job", "what it is for", "when", "runner", "in the image", "last time"], rows)
    return {"jobs": {name: job.model_dump(mode="json") for name, job in jobs.items()}}


def run_job(ui: Console, name: str, *, in_image: bool, plan_only: bool) -> dict[str, Any]:
    """Run a job's commands in order; the first that fails ends it with exit code 61."""
    job = find_job(name, in_image=in_image)
    commands = job.commands(in_image=in_image)
    where = IMAGE if in_image else MACHINE
    if plan_only:
        plan = _plan(name, job, commands, where)
        ui.plan(plan)
        return plan.as_dict()
    _check_user(name, job, in_image=in_image)
    started = time.monotonic()
    ran = (_inside if in_image else _here)(ui, name, job, commands)
    seconds, code = time.monotonic() - started, ran.ended.exit_code
    facts = {"commands": [" ".join(command) for command in commands], **ran.facts}
    record(name, where, seconds=seconds, exit_code=code, **facts)
    if not ran.ended.is_good:
        late = f"took longer than {job.minutes} minutes and was ended"
        why = late if ran.ended.is_overdue else f"exited {code}"
        raise TestsFailed(
            found=f"job {name} {where} {why} after {seconds:.0f} s",
            expected="exit code 0 of each of its commands",
            remedy=f"mend what its lines above name, then run `./inv ci --run {name}"
            f"{' --in-image' if in_image else ''}` again",
        )
    ui.line(f"job {name} {where}: {seconds:.0f} s")
    return {"job": name, "where": where, "seconds": round(seconds, 1)}


def _plan(name: str, job: Job, commands: Sequence[Sequence[str]], where: str) -> Plan:
    actions = [Action(verb="run", target=" ".join(command), why=where) for command in commands]
    return Plan(title=f"job {name}: {job.says}", actions=tuple(actions))


def _check_user(name: str, job: Job, *, in_image: bool) -> None:
    if job.as_root and not in_image and os.geteuid() != 0:
        raise UsageError(
            found=f"user id {os.geteuid()} runs job {name}",
            expected="root: its tests start engines and make root file systems",
            remedy=f"sudo ./inv ci --run {name}",
        )


def _here(ui: Console, name: str, job: Job, commands: Sequence[Sequence[str]]) -> Ran:
    return Ran(ended=run_here(ui, commands, limit_s=job.minutes * 60))


def _inside(ui: Console, name: str, job: Job, commands: Sequence[Sequence[str]]) -> Ran:
    from dih20.ci.image import build_with
    from dih20.ci.in_image import run_commands
    from dih20.image import engine

    log = build_dir() / "logs" / f"ci-{name}.log"
    with closing(engine.connect()) as client:
        started = time.monotonic()
        image = build_with(ui, client)
        built_s = time.monotonic() - started
        ui.line(f"  in {image.tag}, without network; log: {shown(log)}", style="dim")
        ended = run_commands(ui, client, image.id, commands, log=log, limit_s=job.minutes * 60)
    made = {"tag": image.tag, "id": image.id, "seconds": round(built_s, 1), "network": "none"}
    return Ran(ended=ended, facts={"image": made})
