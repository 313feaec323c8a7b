"""`inv ci` and `inv ci-image`: the jobs of CI on any machine, and the image that they can run in."""

from __future__ import annotations

from typing import Any

from dih20.cli import Run, task


@task(
    changes=True,
    help={
        "list_": "the jobs, and how long each took here the last time",
        "run": "the name of a job to run",
        "in_image": "run it inside the CI image, without network",
        "render": "write .github/workflows/ci.yml from ci/jobs.yaml",
    },
)
def ci(
    this: Run, list_: bool = False, run: str = "", in_image: bool = False, render: bool = False
) -> dict[str, Any]:
    """The jobs of CI: --list, or --run JOB here or inside the CI image."""
    from dih20.ci.running import list_jobs, run_job
    from dih20.ci.workflow import render_workflow

    if render:
        return render_workflow(this.ui, plan_only=this.plan)
    if run:
        return run_job(this.ui, run, in_image=in_image, plan_only=this.plan)
    return list_jobs(this.ui)


@task(changes=True)
def ci_image(run: Run) -> dict[str, Any]:
    """The image that CI jobs run in: locked packages, no network needed inside."""
    from dih20.ci.image import ci_image as build

    return build(run.ui, plan_only=run.plan)
