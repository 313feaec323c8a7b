"""The GitHub Actions workflow: rendered from the table of jobs, so that it calls its tasks and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dih20.ci.jobs import Job, load_jobs
from dih20.console import Console
from dih20.paths import REPOSITORY, shown
from dih20.plan import Action, Plan

WORKFLOW: Final = REPOSITORY / ".github" / "workflows" / "ci.yml"
TEMPLATE: Final = REPOSITORY / "ci" / "github" / "workflow.yaml.j2"
# The runner's own check-out, release v5.0.0. Pinned by its commit: a tag can be moved, a commit cannot.
CHECKOUT: Final = "actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8"
CONDITIONS: Final = {
    "change": "github.event_name != 'schedule'",
    "weekly": "github.event_name == 'schedule' || github.event_name == 'workflow_dispatch'",
    "by-hand": "github.event_name == 'workflow_dispatch'",
}


def workflow_text(jobs: Mapping[str, Job]) -> str:
    """Give the workflow's text."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(jobs=jobs, checkout=CHECKOUT, conditions=CONDITIONS)


def render_workflow(ui: Console, *, plan_only: bool) -> dict[str, Any]:
    """Write the workflow after checking it, or say whether it would change."""
    from dih20.ci.workflow_rules import check_workflow

    jobs = load_jobs()
    text = workflow_text(jobs)
    check_workflow(text, jobs)
    before = WORKFLOW.read_text(encoding="utf-8") if WORKFLOW.exists() else ""
    action = Action(verb="write", target=shown(WORKFLOW), needed=text != before)
    plan = Plan(title="render the workflow of ci/jobs.yaml", actions=(action,))
    ui.plan(plan)
    if not plan_only and action.needed:
        WORKFLOW.parent.mkdir(parents=True, exist_ok=True)
        WORKFLOW.write_text(text, encoding="utf-8")
    return plan.as_dict()
